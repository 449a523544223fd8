"""A cluster of two magnetar brokers beside one of Apache Pulsar's, driven by the official Python client.

take-over          from the moment at which the ownership node of a killed broker vanishes to the first publish that is
                   acknowledged elsewhere. From then on, a new client tries every 100 ms: a client that was connected
                   waits for its own back-off, which has grown to seconds by then, and is shown beside it
unload-p99         500 messages per second to one topic, whose bundle is unloaded every two seconds: those that were
                   sent at most half a second before an unload, or 1.5 s after it
open-10000         seconds for producers on 10,000 new topics, 32 at a time, in five slices
topics-10000       p50 and p99 of publishing to 10,000 topics, 1,000 messages per second in all. `beside-1` has as its
                   peer our own figure with 1 topic at the same rate. The servers' CPU is per topic that was opened, and
                   per message
idle-topic-memory  resident memory of both brokers, per topic with one producer and one subscription; Apache's after a
                   full collection. What is alive in their heaps is shown beside it

`python -m bench.cluster --rows take-over` measures some rows only.
Read next: cluster_sides.py (the two clusters, and what makes them comparable), cluster_worker.py (the client)
"""

from __future__ import annotations

import argparse
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from statistics import median, quantiles
from typing import Any, Final

from bench.cluster_sides import MAKES, Contest, Contestant
from bench.cluster_worker import Times
from bench.pulsar import PEER
from bench.report import Row, Side, print_table
from bench.rows import say
from interop.jars import BOOKKEEPER, PULSAR, jar_folder
from magnetar.errors import ProcessFailedError

TAKE_OVER, UNLOAD, OPEN, MEMORY = "take-over", "unload-p99", "open-10000", "idle-topic-memory"
LATENCY: Final = "topics-10000"
NAMES = (TAKE_OVER, UNLOAD, OPEN, LATENCY, MEMORY)
TAKE_OVER_GOAL = UNLOAD_GOAL = LATENCY_GOAL = 1.0
OPEN_GOAL = 4.0
MEMORY_GOAL = 2.0
P50_BESIDE_1, P99_BESIDE_1 = 1.2, 2.0
"""As long as with one topic, at most."""
ROUNDS = 5
RATE = 500
UNLOADS = 5
BEFORE_UNLOAD_S, AFTER_UNLOAD_S = 0.5, 1.5
TOPICS = 10_000
SLICES = 5
WARM_TOPICS = 300
LATENCY_RATE = 1_000
LATENCY_S = 10.0
WARM_S = 5.0
VANISHED_S_MAX = 60.0
ANSWER_TIMEOUT_S = 900.0

Figures = dict[str, float]


@dataclass(frozen=True, slots=True)
class Taken:
    """Samples of ours and of theirs, as they were taken in turn."""

    ours: list[Figures]
    theirs: list[Figures]

    def side(self, number: int, figure: str) -> Side:
        samples = (self.ours, self.theirs)[number]
        return Side(tuple(each[figure] for each in samples), tuple(each.get("cpu", 0.0) for each in samples))

    def both(self, figure: str) -> tuple[float, float]:
        return median(each[figure] for each in self.ours), median(each[figure] for each in self.theirs)

    def row(self, name: str, unit: str, figure: str, goal: float | None, *also: str) -> Row:
        """Of a figure that is better when it is lower. `also`: figures to show beside it."""
        detail = {each.replace("_", " "): self.both(each) for each in also}
        return Row(
            f"cluster/{name}", unit, "lower", self.side(0, figure), PEER, self.side(1, figure), goal, None, detail
        )


def in_turn(contest: Contest, rounds: int, take: Callable[[Contestant], Figures]) -> Taken:
    taken = Taken([], [])
    for _ in range(rounds):
        for side, samples in zip(contest.sides, (taken.ours, taken.theirs), strict=True):
            samples.append(take(side))
    return taken


def run(ours: str = "magnetar", names: Sequence[str] = NAMES, topics: int = TOPICS, rounds: int = ROUNDS) -> list[Row]:
    for jars in (PULSAR, BOOKKEEPER):
        jar_folder(jars)  # The download takes none of the time that is measured.
    rows: list[Row] = []
    if TAKE_OVER in names or UNLOAD in names:
        with Contest(ours, ANSWER_TIMEOUT_S) as contest:
            _warm_up(contest)
            rows += _changes_of_owner(contest, names, rounds)
    if not {OPEN, LATENCY, MEMORY}.isdisjoint(names):
        with Contest(ours, ANSWER_TIMEOUT_S) as contest:
            _warm_up(contest)
            rows += [row for row in _many_topics(contest, topics, rounds) if _part(row) in names]
    return rows


def _part(row: Row) -> str:
    """The name by which the row is chosen."""
    name = row.name.removeprefix("cluster/")
    return LATENCY if name.startswith(LATENCY) else name


def _warm_up(contest: Contest) -> None:
    """A JVM compiles what is hot."""
    say("cluster: warm-up")
    for side in contest.sides:
        side.client.ask("open", prefix=side.new_topic("warm"), first=0, count=WARM_TOPICS)
        side.client.ask("publish", topics=WARM_TOPICS, rate=LATENCY_RATE, seconds=WARM_S)
        side.client.ask("close")


# --- changes of the owner ---------------------------------------------------------------------------------------------


def _changes_of_owner(contest: Contest, names: Sequence[str], rounds: int) -> list[Row]:
    rows = []
    if UNLOAD in names:
        say(f"cluster/{UNLOAD}")
        taken = in_turn(contest, rounds, _unload)
        rows.append(taken.row(UNLOAD, "ms", "p99_ms", UNLOAD_GOAL, "longest_ms", "unload_ms", "p50_ms"))
    if TAKE_OVER in names:
        say(f"cluster/{TAKE_OVER}")
        taken = in_turn(contest, rounds, _take_over)
        also = "from_the_kill_s", "connected_client_s", "connected_client_from_the_kill_s"
        rows.append(taken.row(TAKE_OVER, "s", "seconds", TAKE_OVER_GOAL, *also))
    return rows


def _unload(side: Contestant) -> Figures:
    topic = side.new_topic("unloaded")
    side.client.ask("start", topic=topic, rate=RATE)
    time.sleep(BEFORE_UNLOAD_S + AFTER_UNLOAD_S)
    unloads, took = [], []
    for _ in range(UNLOADS):
        unloads.append(time.monotonic())
        side.deployment.unload(topic)
        took.append(time.monotonic() - unloads[-1])
        time.sleep(max(0.0, BEFORE_UNLOAD_S + AFTER_UNLOAD_S - took[-1]))
    taken = around(side.client.ask("stop"), unloads)
    side.client.ask("close")
    cuts = quantiles(taken, n=100)
    return {"p50_ms": cuts[49], "p99_ms": cuts[98], "longest_ms": max(taken), "unload_ms": median(took) * 1000}


def around(times: Times, unloads: Sequence[float]) -> list[float]:
    """The milliseconds of those messages that were sent around one of the unloads."""
    return [
        (acknowledged - sent) * 1000
        for sent, acknowledged in times
        if any(at - BEFORE_UNLOAD_S <= sent < at + AFTER_UNLOAD_S for at in unloads)
    ]


def _take_over(side: Contestant) -> Figures:
    """The broker that stays is the leader. The killed one is started again, and awaited, after that."""
    deployment, topic = side.deployment, side.new_topic("taken-over")
    stays, killed = deployment.brokers
    deployment.wait_whole()
    deployment.move(topic, killed)
    side.client.ask("start", topic=topic, rate=RATE)
    vanished = Vanished(deployment.kazoo, deployment.owner_node(topic))
    time.sleep(1.0)
    killed_at = time.monotonic()
    killed.close()
    vanished_at = vanished.wait()
    first_at = side.client.ask("probe", url=stays.url, topic=topic)
    first_of_connected = first_after(side.client.ask("stop"), killed_at)
    side.client.ask("close")
    killed.start()
    deployment.wait_whole()
    return {
        "seconds": first_at - vanished_at,
        "from_the_kill_s": first_at - killed_at,
        "connected_client_s": first_of_connected - vanished_at,
        "connected_client_from_the_kill_s": first_of_connected - killed_at,
    }


def first_after(times: Times, killed_at: float) -> float:
    """The first acknowledgement of a message that was sent after the kill."""
    return min(acknowledged for sent, acknowledged in times if sent > killed_at)


class Vanished:
    """The moment at which a node of ZooKeeper is deleted."""

    def __init__(self, kazoo: Any, path: str) -> None:
        self._path = path
        self._at: float | None = None
        self._happened = threading.Event()
        if kazoo.exists(path, watch=self._on_event) is None:
            raise ProcessFailedError(f"there is no node {path}: the topic's bundle has no owner")

    def _on_event(self, _event: Any) -> None:
        self._at = time.monotonic()
        self._happened.set()

    def wait(self) -> float:
        if not self._happened.wait(VANISHED_S_MAX) or self._at is None:
            raise ProcessFailedError(f"{self._path} did not vanish within {VANISHED_S_MAX:g} s")
        return self._at


# --- many topics ------------------------------------------------------------------------------------------------------


def _many_topics(contest: Contest, topics: int, rounds: int) -> list[Row]:
    before = [_memory(side) for side in contest.sides]
    return [_open(contest, topics), _subscribe(contest, before), *_latency(contest, topics, rounds)]


def _memory(side: Contestant) -> Figures:
    live = side.deployment.live_bytes()  # First: it collects what is not.
    return {"resident_KB": side.deployment.resident_bytes() / 1000, "live_KB": live / 1000}


def _subscribe(contest: Contest, before: Sequence[Figures]) -> Row:
    """Nothing was published yet: no broker holds messages."""
    say(f"cluster/{MEMORY}")
    taken = []
    for side, first in zip(contest.sides, before, strict=True):
        count = side.client.ask("subscribe")
        taken.append([{name: (now - first[name]) / count for name, now in _memory(side).items()}])
        side.client.ask("unsubscribe")
    return Taken(*taken).row(MEMORY, "KB/topic", "resident_KB", MEMORY_GOAL, "live_KB")


def _open(contest: Contest, topics: int) -> Row:
    """One sample: the slices are taken in turn, so that what else the machine does hits both."""
    say(f"cluster/{OPEN}")
    prefixes = [side.new_topic("many") for side in contest.sides]
    slices: list[list[Figures]] = [[], []]
    for first in range(0, topics, topics // SLICES):
        for side, prefix, taken in zip(contest.sides, prefixes, slices, strict=True):
            count = topics // SLICES
            taken.append(side.measure("open", count, prefix=prefix, first=first, count=count))
    total: list[list[Figures]] = []
    for taken in slices:
        seconds = sum(each["seconds"] for each in taken)
        cpu = sum(each["cpu"] * each["seconds"] for each in taken) / seconds
        slowest, servers = max(each["seconds"] for each in taken), median(each["servers_CPU_us"] for each in taken)
        total.append([{"seconds": seconds, "cpu": cpu, "slowest_slice_s": slowest, "servers_CPU_us": servers}])
    return Taken(*total).row(OPEN, "s", "seconds", OPEN_GOAL, "slowest_slice_s", "servers_CPU_us")


def _latency(contest: Contest, topics: int, rounds: int) -> list[Row]:
    say(f"cluster/{LATENCY}")

    def publish_to(count: int) -> Callable[[Contestant], Figures]:
        arguments = {"topics": count, "rate": LATENCY_RATE, "seconds": LATENCY_S}
        return lambda side: side.measure("publish", LATENCY_RATE * LATENCY_S, **arguments)

    for warm in (1, topics):
        in_turn(contest, 1, publish_to(warm))
    one, many = Taken([], []), Taken([], [])
    for _ in range(rounds):
        for count, taken in ((1, one), (topics, many)):
            sampled = in_turn(contest, 1, publish_to(count))
            taken.ours.extend(sampled.ours)
            taken.theirs.extend(sampled.theirs)
    rows = []
    for figure, most in (("p50", P50_BESIDE_1), ("p99", P99_BESIDE_1)):
        value = f"{figure}_ms"
        row = many.row(f"{LATENCY}-{figure}", "ms", value, LATENCY_GOAL, "servers_CPU_us")
        with_one = {f"{figure} with 1 topic": one.both(value), "servers CPU with 1": one.both("servers_CPU_us")}
        rows.append(replace(row, detail={**row.detail, **with_one}))
        name = f"cluster/{LATENCY}-{figure}-beside-1"
        rows.append(Row(name, "ms", "lower", many.side(0, value), "with 1 topic", one.side(0, value), 1 / most))
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.cluster", description=__doc__.partition("\n")[0])
    parser.add_argument("--ours", choices=sorted(MAKES), default="magnetar", help="whose cluster stands on our side")
    parser.add_argument("--rows", default=",".join(NAMES), metavar="NAME,NAME", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--topics", type=int, default=TOPICS, help="how many are opened")
    parser.add_argument("--rounds", type=int, default=ROUNDS, help="samples of each side")
    arguments: Any = parser.parse_args()
    chosen = arguments.rows.split(",")
    if unknown := sorted(set(chosen) - set(NAMES)):
        parser.error(f"no such row: {', '.join(unknown)}")
    print_table(run(arguments.ours, chosen, arguments.topics, arguments.rounds))


if __name__ == "__main__":
    main()
