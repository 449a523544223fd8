"""What brokers promise together, however many of them think that they own a topic: T1, T2, T4, T5."""

from __future__ import annotations

from magnetar.client import MessageId
from magnetar.sim.topics.history import NOT_SAID, Sends
from magnetar.sim.topics.tap import WatchedTopic
from magnetar.sim.topics.watch import Load, TopicChange, TopicInvariant, TopicWatch
from magnetar.topic.position import Position


class Chain(TopicInvariant):
    """T1: only the last ledger of a topic may be open; ids only grow; whatever has a receipt stays in the chain."""

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
            self.violated(f"{change.topic}: {new} came behind {before[-1]}")
        used = self._with_receipts.get(change.topic, {})
        if lost := [ledger_id for ledger_id in before if ledger_id not in after and ledger_id in used]:
            self.violated(f"{change.topic}: ledgers {lost} have messages with receipts, and are not in the chain")

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        if message_id == NOT_SAID:
            return
        self._with_receipts.setdefault(sends.topic, {})[message_id.ledger_id] = None
        chain = self.watch.chains.get(sends.topic)
        if chain is None or message_id.ledger_id not in [span.ledger_id for span in chain.spans]:
            self.violated(f"{sends.producer} {sequence_id} is stored at {message_id}, which is not in the chain")


class OneVoice(TopicInvariant):
    """T2: two brokers may both serve a topic, but what they acknowledge is one log."""

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


class Deduplicated(TopicInvariant):
    """T4: each message is stored once; a repeat is answered as one when the first is stored, and not before."""

    id = "T4"

    def on_duplicate(self, topic: WatchedTopic, producer: str, sequence_id: int) -> None:
        if (producer, sequence_id) in topic.undecided:
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
    """T5: whoever loads a topic finds every acknowledgement that was confirmed before, and no cursor goes back."""

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
