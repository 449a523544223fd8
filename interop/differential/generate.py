"""Random programs by seed. Each has a theme, which says which steps are likely."""

from __future__ import annotations

import random
from typing import Any

from interop.differential.program import Program, Step

STEPS_MIN, STEPS_MAX = 6, 18
_KEYS = ("a", "ab", "abc", "abcd")
_KINDS = ("Exclusive", "Shared", "Failover", "Key_Shared")
_COMMON = {
    "send": 10, "subscribe": 6, "ack": 7, "ack_to": 3, "nack": 4, "close": 3, "redeliver": 2, "seek": 3, "unload": 2,
    "ack_id": 2, "close_producer": 1, "last_id": 1, "read": 2, "unsubscribe": 1,
}  # fmt: skip
_THEMES: dict[str, dict[str, int]] = {
    "clients": _COMMON,
    "admin": {
        **_COMMON, "skip": 3, "skip_all": 2, "expire": 2, "expire_to": 3, "reset": 3, "reset_time": 2, "create_sub": 3,
        "clear_namespace": 1, "unsubscribe_namespace": 1,
        "delete_sub": 2, "peek": 2, "examine": 1, "get_message": 1, "admin_last_id": 2, "analyze": 2, "list_subs": 1,
    },
    "compaction": {**_COMMON, "send": 14, "compact": 6, "read": 6, "last_id": 4, "tombstone": 3, "unload": 3},
    "ends": {**_COMMON, "terminate": 3, "delete_topic": 2, "delete_sub": 2, "admin_last_id": 1,
             "create_sub": 2},
    "dedup": {**_COMMON, "send": 4, "send_seq": 14, "unload": 4, "close_producer": 5, "read": 4},
    "delays": {**_COMMON, "send_delayed": 8, "skip": 1, "expire_to": 1, "skip_all": 1},
    "policies": {**_COMMON, "subscribe": 10, "policy": 8, "send_access": 8, "close_producer": 5, "create_sub": 3},
    "limits": {**_COMMON, "nack": 7, "ack": 10, "seek": 0, "ack_id": 0, "unsubscribe": 0},
    "chunks": {**_COMMON, "nack": 0, "send": 4, "send_chunked": 9, "read": 4, "last_id": 3},
}  # fmt: skip


def generate(seed: int) -> Program:
    return _Generator(random.Random(seed)).program(f"seed {seed}")


class _Generator:
    def __init__(self, chance: random.Random) -> None:
        self._chance = chance
        self._consumers: dict[str, str] = {}
        self._kinds: dict[str, str] = {}
        self._opened = 0
        self._messages = 0
        self._partitions = 0
        self._batch = chance.choice((False, False, True, "keys"))
        self._by_index = chance.random() < 0.5
        self._keyed = chance.random() < 0.6

    def program(self, name: str) -> Program:
        theme = self._chance.choice(tuple(_THEMES))
        weights = _THEMES[theme]
        setup = self._setup(theme)
        steps = [self._subscribe()] if self._chance.random() < 0.8 else []
        steps += [self._send()]
        verbs, numbers = list(weights), list(weights.values())
        for verb in self._chance.choices(verbs, numbers, k=self._chance.randint(STEPS_MIN, STEPS_MAX)):
            step = getattr(self, f"_{verb}")()
            if step is not None:
                steps.append(step)
        steps.append(Step("finish"))
        return Program(setup, tuple(steps), f"{name}, {theme}")

    def _setup(self, theme: str) -> Step:
        arguments: dict[str, Any] = {}
        if self._chance.random() < 0.25:
            self._partitions = arguments["partitions"] = self._chance.choice((1, 2, 3))
        if theme == "dedup":
            arguments["dedup"] = True
        if theme == "limits":
            arguments[self._chance.choice(("unacked_per_consumer", "unacked_per_sub"))] = self._chance.choice((3, 5, 8))
        if theme == "compaction":
            self._keyed = True
        if theme in ("limits", "delays"):
            self._kinds = dict.fromkeys(("s0", "s1"), self._chance.choice(("Shared", "Shared", "Key_Shared")))
        return Step("setup", arguments)

    def _pick(self, *values: Any) -> Any:
        return self._chance.choice(values)

    def _m(self) -> int:
        return self._chance.randrange(max(1, self._messages))

    def _sub(self) -> str:
        return str(self._chance.choice(("s0", "s0", "s0", "s1")))

    def _consumer(self) -> str | None:
        return self._chance.choice(tuple(self._consumers)) if self._consumers else None

    # producing

    def _send(self) -> Step:
        count = self._pick(1, 2, 3, 5, 8)
        self._messages += count
        arguments: dict[str, Any] = {"n": count}
        if self._batch:
            arguments |= {"p": "batches", "batch": self._batch}
        if self._keyed:
            arguments["keys"] = self._pick(*_KEYS)
        if self._chance.random() < 0.1:
            arguments |= {"p": "single"}
            arguments.pop("batch", None)
        return Step("send", arguments)

    def _tombstone(self) -> Step | None:
        if self._partitions:  # The client overlooks an empty message when it merges partitions.
            return None
        self._messages += 1
        return Step("send", {"p": "single", "n": 1, "keys": self._pick("a", "b", "c"), "tombstone": True})

    def _send_seq(self) -> Step:
        count = self._pick(1, 1, 2, 3, 5)
        self._messages += count
        arguments = {"n": count, "p": self._pick("d0", "d1"), "seq": self._chance.randrange(12)}
        if arguments["p"] == "d1":
            arguments["batch"] = True
        return Step("send", arguments)

    def _send_delayed(self) -> Step:
        count = self._pick(1, 2, 3)
        self._messages += count
        arguments = {"n": count, "p": "later", "delay": self._pick(600, 1500, 3_600_000)}
        if self._keyed:
            arguments["keys"] = self._pick(*_KEYS)
        return Step("send", arguments)

    def _send_chunked(self) -> Step:
        self._messages += 1
        arguments: dict[str, Any] = {"p": "chunks", "n": 1, "chunk": True, "size": self._pick(10, 100_000, 200_000)}
        if self._keyed:
            arguments["keys"] = self._pick("a", "b")
        return Step("send", arguments)

    def _send_access(self) -> Step:
        self._messages += 1
        access = self._pick("Shared", "Exclusive", "ExclusiveWithFencing")
        return Step("send", {"p": self._pick("x0", "x1", "x2"), "n": 1, "access": access})

    def _close_producer(self) -> Step:
        return Step(
            "close_producer",
            {"p": self._pick("x0", "x1", "x2", "p0", "batches", "single", "d0", "d1", "later", "chunks")},
        )

    # consuming

    def _subscribe(self) -> Step:
        name, sub = f"c{self._opened}", self._sub()
        self._opened += 1
        kind = self._kinds.setdefault(sub, self._pick(*_KINDS))
        if self._chance.random() < 0.06:
            kind = self._pick(*_KINDS)
        arguments: dict[str, Any] = {"c": name, "sub": sub, "kind": kind}
        if self._chance.random() < 0.3:
            arguments["queue"] = self._pick(1, 2, 5)
        if kind != "Shared" and not self._partitions and "queue" not in arguments and self._chance.random() < 0.25:
            arguments["take"] = self._pick(1, 3)  # Elsewhere the server chooses which messages these are.
        if self._by_index:
            arguments["by_index"] = True
        if self._chance.random() < 0.2:
            arguments["start"] = "latest"
        if kind in ("Exclusive", "Failover") and self._chance.random() < 0.25:
            arguments["compacted"] = True
        if kind != "Exclusive" or self._chance.random() < 0.3:
            arguments["inclusive"] = (
                True  # Otherwise the consumer that sought drops the message, and no other one does.
            )
        self._consumers[name] = sub
        return Step("subscribe", arguments)

    def _close(self) -> Step | None:
        name = self._consumer()
        if name is None:
            return None
        del self._consumers[name]
        return Step("close", {"c": name})

    def _unsubscribe(self) -> Step | None:
        name = self._consumer()
        if name is None:
            return None
        del self._consumers[name]
        return Step("unsubscribe", {"c": name})

    def _ack(self) -> Step:
        return Step("ack", {"sub": self._sub(), "which": self._pick("all", "first", "last", "even", "odd", "half")})

    def _ack_to(self) -> Step:
        return Step("ack_to", {"sub": self._sub(), "which": self._pick("first", "half", "all")})

    def _nack(self) -> Step:
        return Step("nack", {"sub": self._sub(), "which": self._pick("all", "first", "last", "even", "half")})

    def _redeliver(self) -> Step:
        return Step("redeliver", {"sub": self._sub()})

    def _ack_id(self) -> Step | None:
        name = self._consumer()
        return Step("ack_id", {"c": name, "m": self._m(), "cumulative": self._pick(False, True)}) if name else None

    def _seek(self) -> Step | None:
        name = self._consumer()
        to = self._pick("earliest", "latest", "message", "message", "time")
        return Step("seek", {"c": name, "to": to, "m": self._m()}) if name else None

    def _last_id(self) -> Step | None:
        name = self._consumer()
        return Step("last_id", {"c": name}) if name else None

    def _read(self) -> Step:
        if self._partitions:  # The client merges partitions, and takes a message id for none or all of them.
            return Step("read", {"start": "earliest"})
        arguments: dict[str, Any] = {"start": self._pick("earliest", "earliest", "latest", "message"), "m": self._m()}
        if self._chance.random() < 0.3:
            arguments["inclusive"] = True
        if self._chance.random() < 0.4:
            arguments["compacted"] = True
        elif self._chance.random() < 0.2:
            arguments["seek"] = self._pick("time", "message")
        return Step("read", arguments)

    # administration

    def _skip(self) -> Step:
        return Step("skip", {"sub": self._sub(), "n": self._pick(0, 1, 2, 3, 10)})

    def _skip_all(self) -> Step:
        return Step("skip_all", {"sub": self._sub()})

    def _expire(self) -> Step:
        return Step("expire", {"sub": self._sub(), "seconds": self._pick(1, 3600)})

    def _expire_to(self) -> Step:
        return Step("expire_to", {"sub": self._sub(), **self._place()})

    def _reset(self) -> Step:
        excluded, index = self._pick(False, True), self._pick(False, True)
        return Step("reset", {"sub": self._sub(), **self._place(), "excluded": excluded, "index": index})

    def _place(self) -> dict[str, Any]:
        """A message; now and then one that does not exist; of a partition, now and then another one's."""
        found: dict[str, Any] = {"m": self._m()}
        if self._chance.random() < 0.2:
            found["shift"] = self._pick(1, 100)
        if self._partitions and self._chance.random() < 0.8:
            found["on"] = self._chance.randrange(self._partitions)
        return found

    def _reset_time(self) -> Step:
        return Step("reset_time", {"sub": self._sub(), "m": self._m()})

    def _create_sub(self) -> Step:
        at = self._pick("earliest", "latest", *(() if self._partitions else ("message",)))
        return Step("create_sub", {"sub": self._pick("s0", "s1", "s2"), "at": at, "m": self._m()})

    def _delete_sub(self) -> Step:
        return Step("delete_sub", {"sub": self._sub(), "force": self._pick(False, True)})

    def _delete_topic(self) -> Step:
        return Step("delete_topic", {"force": self._pick(False, False, True)})

    def _unload(self) -> Step:
        return Step("unload")

    def _terminate(self) -> Step:
        return Step("terminate")

    def _compact(self) -> Step:
        return Step("compact")

    def _peek(self) -> Step:
        return Step("peek", {"sub": self._sub(), "n": self._pick(1, 1, 2, 5)})

    def _examine(self) -> Step:
        return Step("examine", {"start": self._pick("earliest", "latest"), "n": self._pick(1, 2, 5)})

    def _get_message(self) -> Step:
        return Step("get_message", {"m": self._m()})

    def _admin_last_id(self) -> Step:
        return Step("admin_last_id")

    def _analyze(self) -> Step:
        return Step("analyze", {"sub": self._sub()})

    def _clear_namespace(self) -> Step:
        return Step("clear_namespace", {"sub": self._pick("", "s0", "s1")})

    def _unsubscribe_namespace(self) -> Step:
        return Step("unsubscribe_namespace", {"sub": self._sub()})

    def _policy(self) -> Step:
        name, *values = self._pick(
            ("maxConsumersPerTopic", 1, 2),
            ("maxConsumersPerSubscription", 1, 2),
            ("maxProducersPerTopic", 1, 2),
            ("maxSubscriptionsPerTopic", 1, 2),
            ("subscriptionTypesEnabled", ["Shared"], ["Exclusive", "Failover"]),
            ("deduplication", True, False),
        )
        return Step("policy", {"name": name, "value": self._pick(*values)})

    def _list_subs(self) -> Step:
        return Step("list_subs")
