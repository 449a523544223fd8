"""Every invariant of topics and of their clients' histories, one class each; the ids are those of docs/simulation.md.

Brokers:   what they promise together, however many of them believe that they own a topic: T1, T2, T4, T5.
Clients:   what applications may rely on, compared with everything that they were told: C1 to C6 and C8, at the end.
Dispatch:  what consumers may wait for, and how long: V6.
Memory:    what a broker holds for its clients, at some of the receipts that producers get, and once more when
           everything is read and nothing is published: M1.
Elsewhere: C7 and a part of T5 have no class: they are about what a subscription delivers when all is over, and the
           client that drains it sees that (scenario.py). So does V2, about calls that do not end.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.client import Message, MessageId
from magnetar.sim.ledgers.invariants import (
    FenceIsForEver,
    LedgerMetadataChanges,
    MemoryIsBounded,
    NoIsAPromise,
    NothingOutlives,
    receiving_complaints,
)
from magnetar.sim.ledgers.watch import Invariant
from magnetar.sim.topics.observe import Waiting, WatchedPublisher, WatchedSubscription
from magnetar.sim.topics.watch import (
    NOT_SAID,
    Audited,
    Load,
    Progress,
    Sends,
    Stay,
    TopicChange,
    TopicInvariant,
    TopicWatch,
    plain,
)
from magnetar.topic.log.managed_ledger import ManagedLedger
from magnetar.topic.position import Position

# --- brokers ----------------------------------------------------------------------------------------------------------


class Chain(TopicInvariant):
    """T1: only the last ledger of a topic may be open; ids only grow; whatever has a receipt stays in the chain, until
    it is trimmed, from the beginning on. Whether it was acknowledged before, the audit says (T5, C7)."""

    id = "T1"

    def __init__(self, watch: TopicWatch) -> None:
        super().__init__(watch)
        self._with_receipts: dict[str, dict[int, None]] = {}

    def on_topic_change(self, change: TopicChange) -> None:
        if change.after is None:
            self.violated(f"{change.topic} was deleted by {change.by}")
            return
        before = [span.ledger_id for span in change.before.spans] if change.before is not None else []
        after = [span.ledger_id for span in change.after.spans]
        for ledger_id in after[:-1]:
            known = self.watch.metadata(ledger_id)
            if known is None or not known.is_closed:
                self.violated(f"{change.topic}: ledger {ledger_id} is not the last of {after}, and is not closed")
        if new := [ledger_id for ledger_id in after if ledger_id not in before and before and ledger_id < before[-1]]:
            self.violated(f"{change.topic}: {new} came after {before[-1]}")
        used = self._with_receipts.get(change.topic, {})
        trimmed = self._trimmed(before, after) if self.watch.topic_options.trims else []
        if lost := [each for each in before if each not in after and each in used and each not in trimmed]:
            self.violated(f"{change.topic}: ledgers {lost} have messages with receipts, and are not in the chain")

    def _trimmed(self, before: list[int], after: list[int]) -> list[int]:
        """Those before the first that is left; the last one never is."""
        left = [ledger_id for ledger_id in before if ledger_id in after]
        trimmed = before[: before.index(left[0])] if left else []
        self.watch.counters["ledgers trimmed"] += len(trimmed)
        return trimmed

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        if message_id == NOT_SAID:
            return
        self._with_receipts.setdefault(sends.topic, {})[message_id.ledger_id] = None
        chain = self.watch.chains.get(sends.topic)
        if self.watch.topic_options.trims and self._is_before(message_id.ledger_id, chain):
            return  # Its receipt was on the way while its ledger was trimmed.
        if chain is None or message_id.ledger_id not in [span.ledger_id for span in chain.spans]:
            self.violated(f"{sends.producer} {sequence_id} is stored at {message_id}, which is not in the chain")

    def _is_before(self, ledger_id: int, chain: ManagedLedger | None) -> bool:
        return chain is not None and bool(chain.spans) and ledger_id < chain.spans[0].ledger_id


class OneVoice(TopicInvariant):
    """T2: two brokers may both serve a topic, but what they acknowledge is one log: no position is given twice, and
    none after the end of a closed ledger."""

    id = "T2"

    def __init__(self, watch: TopicWatch) -> None:
        super().__init__(watch)
        self._at: dict[tuple[str, MessageId], tuple[str, int]] = {}

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        if message_id == NOT_SAID:
            return
        message = sends.producer, sequence_id
        known = self._at.setdefault((sends.topic, message_id), message)
        if known != message:
            self.violated(f"{sends.topic} {message_id} was given to {known} and to {message}")
        ledger = self.watch.metadata(message_id.ledger_id)
        if ledger is not None and ledger.is_closed and message_id.entry_id > ledger.last_entry_id:
            self.violated(f"{message} was given {message_id}, and the ledger was closed at {ledger.last_entry_id}")


class Deduplicated(TopicInvariant):
    """T4: each message is stored once; a repeat is answered as one when the first is stored, and not before."""

    id = "T4"

    def on_duplicate(self, publisher: WatchedPublisher, producer: str, sequence_id: int) -> None:
        if (producer, sequence_id) in publisher.undecided:
            self.violated(f"{producer} {sequence_id} was answered as a repeat while the first one is being stored")

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        known = sends.stored.get(sequence_id, NOT_SAID)
        if NOT_SAID not in (known, message_id) and known != message_id:
            self.violated(f"{sends.producer} {sequence_id} was stored twice: at {known} and at {message_id}")

    def at_audit(self) -> None:
        for sends in self.told.sends.values():
            there = [found.sequence_id for found in self.told.audits[sends.topic] if found.producer == sends.producer]
            twice = [number for at, number in enumerate(there) if number in there[:at]]
            if twice:
                self.violated(f"{sends.topic} has messages {twice} of {sends.producer} more than once")
            for number, message_id in sends.stored.items():
                if message_id == NOT_SAID and number not in there:
                    self.violated(f"{sends.producer} {number} was answered as a repeat, and the first is not there")
            for number, why in sends.failed.items():
                if number in there:
                    self.violated(f"{sends.producer} {number} is stored, and a repeat of it was refused: {why}")


class AcksStay(TopicInvariant):
    """T5: a broker that loads a topic finds every acknowledgement confirmed before, and no cursor goes back."""

    id = "T5"

    def on_loaded(self, load: Load) -> None:
        topic = load.topic
        for name, entries in load.acked_before.items():
            cursor = topic.cursors.get(name)
            if cursor is None:
                if entries:
                    self.violated(f"{load.broker} loaded {topic.name} and does not know subscription {name}")
                continue
            lost = [entry for entry in entries if not cursor.is_acknowledged(Position(*entry))]
            if lost:
                self.violated(
                    f"{load.broker} loaded {topic.name}, and subscription {name} at {cursor.mark_delete} does not know "
                    f"that {lost} were acknowledged"
                )
            self._check_mark(load, name, cursor.mark_delete)

    def _check_mark(self, load: Load, name: str, mark: Position) -> None:
        topic, before = load.topic, Position(*load.marks_before.get(name, (-1, -1)))
        if mark < before and topic.log.chain.entries_between(mark, before):
            self.violated(f"{load.broker} loaded {topic.name}: {name} went back from {before} to {mark}")
        key = str(topic.name), name
        self.watch.marks[key] = max(self.watch.marks.get(key, (-1, -1)), mark)


# --- clients ----------------------------------------------------------------------------------------------------------

Entry = tuple[int, int]


class NoLostWrite(TopicInvariant):
    """C1: what has a receipt is in the topic."""

    id = "C1"

    def at_audit(self) -> None:
        for sends in self.told.sends.values():
            there = {found.sequence_id for found in self.told.audits[sends.topic] if found.producer == sends.producer}
            for number, message_id in sends.stored.items():
                if number not in there:
                    self.violated(f"{sends.producer} {number} has the receipt {message_id}, and is not there")


class NoDuplicate(TopicInvariant):
    """C2: nothing is in the topic twice."""

    id = "C2"

    def at_audit(self) -> None:
        for topic, audit in self.told.audits.items():
            at: dict[bytes, MessageId] = {}
            for found in audit:
                first = at.setdefault(found.payload, found.id)
                if first is not found.id:
                    self.violated(f"{topic}: {found.payload.decode()} is at {first} and at {found.id}")


class NothingOfFailedSends(TopicInvariant):
    """C3: what failed for good is not there, nor anything that no producer sent."""

    id = "C3"

    def at_audit(self) -> None:
        for topic, audit in self.told.audits.items():
            for found in audit:
                sends = self.told.sends.get((topic, found.producer))
                if sends is None or found.sequence_id >= sends.sent:
                    self.violated(f"{topic} {found.id}: nobody sent {found.payload!r}")
                elif found.sequence_id in sends.failed:
                    why = sends.failed[found.sequence_id]
                    self.violated(f"{topic} {found.id}: {found.payload.decode()} is there, and its send failed: {why}")


class OneValue(TopicInvariant):
    """C4: a message id names one message forever, for producers and for consumers."""

    id = "C4"

    def __init__(self, watch: TopicWatch) -> None:
        super().__init__(watch)
        self._values: dict[tuple[str, MessageId], bytes] = {}

    def on_received(self, progress: Progress, consumer: str, message: Message) -> None:
        known = self._values.setdefault((progress.topic, plain(message.id)), message.payload)
        if known != message.payload:
            self.violated(f"{progress.topic} {message.id}: {consumer} got {message.payload!r}, another one {known!r}")

    def at_audit(self) -> None:
        there = {(topic, plain(found.id)): found for topic, audit in self.told.audits.items() for found in audit}
        for (topic, message_id), payload in self._values.items():
            found = there.get((topic, message_id))
            if found is None or found.payload != payload:
                self.violated(f"{topic} {message_id}: a consumer got {payload.decode()}, and now there is {found}")
        for sends in self.told.sends.values():
            for number, message_id in sends.stored.items():
                found = there.get((sends.topic, plain(message_id)))
                if message_id != NOT_SAID and found is not None and found.payload != sends.payload(number):
                    self.violated(f"{sends.producer} {number} has the receipt {message_id}, and there is {found}")


class NoSkip(TopicInvariant):
    """C5: while nothing forces a broker to begin anew, a consumer gets entry after entry: not twice, not fewer."""

    id = "C5"

    def at_audit(self) -> None:
        entries = {topic: _entries(audit) for topic, audit in self.told.audits.items()}
        for stay in self.told.stays:
            if stay.is_ordered:
                self._check(stay, entries[stay.topic], self.told.progress[stay.topic, stay.subscription])

    def _check(self, stay: Stay, entries: dict[Entry, list[MessageId]], progress: Progress) -> None:
        last: Entry = (-1, -1)
        for when, entry in stay.entries:
            if entry <= last:
                self.violated(f"{stay.consumer} got {entry} after {last}")
            left_out = [
                message_id
                for other, ids in entries.items()
                if last < other < entry
                for message_id in ids
                if not progress.is_asked(message_id, when)
            ]
            if left_out:
                self.violated(f"{stay.consumer} got {entry} after {last}, without {list(map(str, left_out))}")
            last = entry


def _entries(audit: list[Audited]) -> dict[Entry, list[MessageId]]:
    entries: dict[Entry, list[MessageId]] = {}
    for found in audit:
        entries.setdefault(found.id[:2], []).append(plain(found.id))
    return entries


class InOrder(TopicInvariant):
    """C6: messages of one producer are in the order in which it sent them."""

    id = "C6"

    def at_audit(self) -> None:
        for topic, audit in self.told.audits.items():
            for before, after in _neighbours(audit):
                if after.sequence_id < before.sequence_id:
                    self.violated(
                        f"{topic}: {after.payload.decode()} at {after.id} is after {before.payload.decode()} at "
                        f"{before.id}"
                    )


class CompactedView(TopicInvariant):
    """C8: a reader of the compacted view gets of every key its last message, whole, in the order of the topic. After
    the last one the broker announces no further message."""

    id = "C8"

    def on_compacted_view(self, topic: str, values: Mapping[str, bytes], found: list[tuple[str | None, bytes]]) -> None:
        expected = list(values.items())
        if found != expected:
            missing = [key for key, _ in expected if key not in dict(found)]
            wrong = [pair for pair in found if pair not in expected]
            self.violated(f"{topic}: of its compacted view {missing} are missing, and {wrong} should not be there")


def _neighbours(audit: list[Audited]) -> Iterator[tuple[Audited, Audited]]:
    last: dict[str, Audited] = {}
    for found in audit:
        if found.producer in last:
            yield last[found.producer], found
        last[found.producer] = found


# --- dispatch ---------------------------------------------------------------------------------------------------------

DELIVERY_LIMIT_S: Final = 1.5
"""In a healed world: a read that is lost takes its timeout and one retry, a Failover consumer its delay."""


class Delivers(TopicInvariant):
    """V6: while a consumer has permits and room, and something may be delivered to it, something is delivered within
    a bounded time. What may be delivered is computed in observe.py."""

    id = "V6"

    def __init__(self, watch: TopicWatch) -> None:
        super().__init__(watch)
        self._since: dict[WatchedSubscription, tuple[float, int]] = {}
        """Since when something waits, and how many deliveries there were then."""

    def on_look(self, subscription: WatchedSubscription) -> None:
        waiting = subscription.waiting()
        since, deliveries = self._since.get(subscription, (self.watch.now, -1))
        if waiting is None or deliveries != subscription.deliveries:
            self._since[subscription] = (self.watch.now, subscription.deliveries)
        elif self.watch.now - since >= DELIVERY_LIMIT_S:
            self._since[subscription] = (float("inf"), deliveries)  # Said once.
            self.violated(_undelivered(subscription, waiting))


def _undelivered(subscription: WatchedSubscription, waiting: Waiting) -> str:
    why = "; ".join(blocker.text for blocker in subscription.explain().blockers)
    return (
        f"{subscription.topic} {subscription.name}: {waiting.position} is not delivered within {DELIVERY_LIMIT_S:g} s, "
        f"though {waiting.consumer} has permits and room (the broker says: {why})"
    )


# --- memory -----------------------------------------------------------------------------------------------------------

_RECEIPTS_BETWEEN_LOOKS: Final = 8  # Receipts between two looks.


class BrokerMemoryIsBounded(TopicInvariant):
    """M1: what a broker has received is what it counts, within its limit; what is published gives its room back."""

    id = "M1"

    def __init__(self, watch: TopicWatch) -> None:
        super().__init__(watch)
        self._open: dict[str, PulsarFrontEnd] = {}
        self._receipts = 0

    def on_broker_open(self, name: str, front_end: PulsarFrontEnd) -> None:
        self._open[name] = front_end

    def on_broker_closed(self, name: str) -> None:
        self._open.pop(name, None)

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:  # noqa: ARG002
        self._receipts += 1
        if self._receipts % _RECEIPTS_BETWEEN_LOOKS == 0:
            self._look()

    def at_audit(self) -> None:
        self._look()
        for name, front_end in self._open.items():
            if front_end.memory.used_bytes and not _is_giving_up(front_end):
                self.violated(
                    f"{name} counts {front_end.memory.used_bytes} bytes of publishes, and none is in progress"
                )

    def _look(self) -> None:
        for name, front_end in self._open.items():
            connections = [session.connection for session in front_end.sessions]
            for what in receiving_complaints(front_end.receiving, connections):
                self.violated(f"{name}: {what}")


def _is_giving_up(front_end: PulsarFrontEnd) -> bool:
    """Whether the broker closes a topic that another one has taken: what was published to it fails only after that."""
    shared = front_end._shared
    assert shared is not None
    return bool(shared.service.topics.statistics().unloading)


# --- all of them ------------------------------------------------------------------------------------------------------

ALL: tuple[type[Invariant], ...] = (
    FenceIsForEver,
    NoIsAPromise,
    LedgerMetadataChanges,
    NothingOutlives,
    MemoryIsBounded,
    Chain,
    OneVoice,
    Deduplicated,
    AcksStay,
    NoLostWrite,
    NoDuplicate,
    NothingOfFailedSends,
    OneValue,
    NoSkip,
    InOrder,
    CompactedView,
    Delivers,
    BrokerMemoryIsBounded,
)
