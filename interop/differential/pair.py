"""Runs one program on both servers, a step at a time, and compares what can be seen after each.

Settled:   after a step all consumers receive until both sides show the same and nothing comes for QUIET_S, or nothing
           has come for PATIENCE_S although they differ; then statistics are asked for until they agree, or until
           PATIENCE_S have passed. Agreement is quick; only a difference costs time.
Compared:  what a step answers; the messages received, in the order that the kind of subscription promises; statistics.
"""

from __future__ import annotations

import http.client
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from interop.differential.intended import Leaf, unintended
from interop.differential.program import Program, Step
from interop.differential.side import ACK_GROUPING_S, HINT, OpenConsumer, Received, Side

QUIET_S = 0.12
PATIENCE_S = 10.0  # Only a difference waits for so long; a busy machine takes seconds to bring a consumer back.
LOOSE_S = 1.0  # After a step of which nothing is compared; what comes later is waited for at the end.
FINISH_S = 30.0
ROUND_S = 0.5
HINT_S = 0.6
_PAUSE_S = 0.015
_NO_SETTLING = ("last_id", "peek", "examine", "get_message", "admin_last_id", "analyze", "list_subs")


@dataclass(frozen=True, slots=True)
class Difference:
    number: int
    """Of the step, from 0."""
    step: str
    what: str
    leaves: tuple[Leaf, ...]

    def __str__(self) -> str:
        lines = [f"  {leaf}" for leaf in self.leaves]
        return "\n".join([f"step {self.number + 1}, {self.step}:", *lines])

    @property
    def kind(self) -> tuple[str, str]:
        """Two differences of one kind are taken for the same while a program is made shorter."""
        return self.step.partition("(")[0], self.what


def run_program(program: Program, apache: Side, magnetar: Side, trace: Callable[[str], None]) -> Difference | None:
    """The first difference that is not intended."""
    try:
        for side in (apache, magnetar):
            side.begin()
        for number, step in enumerate(program.steps):
            trace(f"{number + 1}. {step}")
            found = _run_step(number, step, apache, magnetar, trace)
            if found is not None:
                return found
        return None
    finally:
        for side in (apache, magnetar):
            side.end()


def _run_step(number: int, step: Step, apache: Side, magnetar: Side, trace: Callable[[str], None]) -> Difference | None:
    def difference(what: str, found: tuple[Any, Any]) -> Difference | None:
        trace(f"    {what}: Apache   {found[0]}\n    {what}: magnetar {found[1]}")
        leaves = unintended(step, apache.setup, what, *found)
        return Difference(number, str(step), what, tuple(leaves)) if leaves else None

    if step.verb == "finish":
        _finish(apache, magnetar)
    outcomes = apache.perform(step), magnetar.perform(step)
    is_loose = _is_loose(apache) and step.verb != "finish"
    if not (is_loose and step.verb in ("ack", "ack_to")) and (found := difference("outcome", outcomes)):
        return found
    if step.verb in _NO_SETTLING:
        return None
    if is_loose:
        _receive(apache, magnetar, LOOSE_S)
        return None
    views = _receive(apache, magnetar)
    if _is_loose(apache) and views[0] != views[1] and _explains(apache, magnetar):
        return None
    if found := difference("received", views):
        return found
    for side in (apache, magnetar):
        for consumer in side.consumers.values():
            consumer.fresh.clear()
    return difference("statistics", _settled_statistics(step, apache, magnetar))


def _is_loose(side: Side) -> bool:
    """With limits of what is unacknowledged, Pulsar delivers more than the limit, and how much more depends on how it
    read. When a topic has ended, the client drops its connections. After an unload,
    Pulsar may deliver again what was acknowledged. Only what has come in the end is compared then."""
    return side.is_ended or side.has_come_again or side.has_limits


def _explains(apache: Side, magnetar: Side) -> bool:
    """Whether Pulsar has stopped at its limit, or delivers again what it has forgotten."""
    return apache.seen <= magnetar.seen or (apache.has_come_again and magnetar.seen <= apache.seen)


def _finish(apache: Side, magnetar: Side) -> None:
    """Consumers acknowledge what they have until nothing has come twice in a row."""
    deadline = time.monotonic() + FINISH_S
    empty_rounds = 0
    while time.monotonic() < deadline and empty_rounds < 2:
        for side in (apache, magnetar):
            side.perform(Step("finish"))
        _receive(apache, magnetar, ROUND_S)
        has_some = any(consumer.held for side in (apache, magnetar) for consumer in side.consumers.values())
        empty_rounds = 0 if has_some else empty_rounds + 1
    time.sleep(ACK_GROUPING_S)


def _receive(apache: Side, magnetar: Side, patience_s: float = PATIENCE_S) -> tuple[Any, Any]:
    """What consumers of both have received when it is settled."""
    quiet_since = time.monotonic()
    while True:
        came = [side.take() for side in (apache, magnetar)]
        now = time.monotonic()
        if any(came):
            quiet_since = now
            continue
        views = _view(apache), _view(magnetar)
        is_same = views[0] == views[1] and apache.is_connected() and magnetar.is_connected()
        if now - quiet_since > (QUIET_S if is_same else patience_s):
            return views
        time.sleep(_PAUSE_S)


def _settled_statistics(step: Step, apache: Side, magnetar: Side) -> tuple[Any, Any]:
    began = time.monotonic()
    while True:
        found = _statistics(apache), _statistics(magnetar)
        plain = _without_hints(found[0]), _without_hints(found[1])
        waited = time.monotonic() - began
        is_same = not unintended(step, apache.setup, "statistics", *plain)
        if waited > PATIENCE_S or (is_same and (found[0] == found[1] or waited > HINT_S)):
            return plain
        time.sleep(_PAUSE_S * 4)


def _without_hints(found: Any) -> Any:
    if not isinstance(found, dict):
        return found
    return {name: _without_hints(value) for name, value in found.items() if not name.startswith(HINT)}


def _statistics(side: Side) -> Any:
    try:
        return side.statistics()
    except (OSError, http.client.HTTPException) as error:
        return type(error).__name__


def _view(side: Side) -> dict[str, Any]:
    """By subscription, in the order that is promised."""
    if _is_loose(side):  # What a subscription without a consumer has left comes to no one.
        connected = {consumer.sub for consumer in side.consumers.values()}
        return {"all in all": sorted(one for one in side.seen if one[0] in connected)}
    found: dict[str, Any] = {}
    for consumer in side.consumers.values():
        if consumer.sub in side.divided:  # What a consumer held that left has come again, or not: as it was divided.
            found.setdefault(f"{consumer.sub}, held in any order", set()).update(consumer.held)
        else:
            for message in consumer.fresh:
                found.setdefault(_queue_of(side, consumer, message), []).append(_plain(side, message))
    return {name: sorted(messages) if "any order" in name else messages for name, messages in found.items() if messages}


def _queue_of(side: Side, consumer: OpenConsumer, message: Received) -> str:
    """What has one order: a consumer's messages of one partition, and of one key if it is about keys."""
    if consumer.kind == "Shared" or (consumer.kind == "Key_Shared" and side.has_delays):
        return f"{consumer.sub}, in any order"
    if consumer.kind == "Key_Shared" and side.mixes_keys:
        return f"{consumer.sub} by {consumer.name}, in any order"
    if consumer.kind == "Key_Shared" and not message.key:  # A message without a key is a key of its own.
        return f"{consumer.sub} by {consumer.name}, without a key, in any order"
    key = f", key {message.key!r}" if consumer.kind == "Key_Shared" else ""
    return f"{consumer.sub} by {consumer.name}, partition {message.partition}{key}"


def _plain(side: Side, message: Received) -> Any:
    """The number and how often it was given back. Pulsar forgets the latter when a part of a batch is acknowledged."""
    if side.has_batches and side.acks_by_index:
        return message.number
    return message.number, message.count
