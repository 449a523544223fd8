"""What applications may rely on, held against everything that they were told: C1 to C6, at the end."""

from __future__ import annotations

from collections.abc import Iterator

from magnetar.client import Message, MessageId
from magnetar.sim.topics.history import NOT_SAID, Audited, Progress, Stay
from magnetar.sim.topics.watch import TopicInvariant, TopicWatch

Entry = tuple[int, int]


def plain(message_id: MessageId) -> MessageId:
    return message_id._replace(partition=-1)


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
    """C3: what failed for good is not there, nor anything that nobody sent."""

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
    """C4: a message id names one message for ever, for producers and for consumers."""

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
                        f"{topic}: {after.payload.decode()} at {after.id} is behind {before.payload.decode()} at "
                        f"{before.id}"
                    )


def _neighbours(audit: list[Audited]) -> Iterator[tuple[Audited, Audited]]:
    last: dict[str, Audited] = {}
    for found in audit:
        if found.producer in last:
            yield last[found.producer], found
        last[found.producer] = found
