"""Bugs of topics: deduplication that promises too early or knows too little, cursors that are read by a broker that was
overtaken, delivery that waits for what never comes, compaction that takes chunks for messages, memory that is not given
back, and a stop or a load that drops something before its replacement is durable."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from magnetar.broker.dispatch.unacked_book import UnackedBook
from magnetar.broker.publishing.dedup import Deduplication, SequenceIds
from magnetar.broker.publishing.topic_publisher import TopicPublisher
from magnetar.broker.pulsar.session import Session
from magnetar.broker.subscriptions.consumer import UnackedCount
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import NotAllowedError
from magnetar.sim.mutants.planting import Mutant
from magnetar.topic.compaction.choice import CompactionChoice
from magnetar.topic.cursor.ledger_storage import LedgerCursorStorage
from magnetar.topic.entry_format.messages import last_batch_index

_bug = partial(Mutant, kind="topics")

_HELD: Final[dict[str, Any]] = {
    "faults": (),
    "duration_s": 1.0,
    "topics": 1,
    "producers": 2,
    "holds": True,
    "keys": 5,
    "batching": True,
    "batch_max": 8,
    "burst_max": 8,
    "queue_max": 100,
    "consumers": 1,
}
"""Batches for one consumer that seldom grants permits, and holds what it got: a world in which limits are reached."""

_COMPACTED: Final[dict[str, Any]] = {"faults": (), "duration_s": 0.5, "topics": 1, "keys": 2, "compacts": True}

_LEAVING: Final[dict[str, Any]] = {"faults": ("leave",), "fault_gap_s": 0.2}

MUTANTS: Final = [
    _bug(34, "a sequence id is recorded before its message is durable", ("T4", "C1"), budget=1_000).edit(
        SequenceIds.judge,
        "self._pushed[producer] = max(sequence_id, highest_sequence_id)",
        "self._pushed[producer] = max(sequence_id, highest_sequence_id)\n"
        "        self.persisted[producer] = max(sequence_id, highest_sequence_id)",
    ),
    _bug(35, "a topic serves before it knows what its producers have stored", ("T4", "C2"), budget=1_000).edit(
        TopicPublisher.begin,
        "await self.switch_dedup()",
        "self._dedup_switch = self._loop.create_task(self._switch_dedup_until_as_wanted())",
    ),
    _bug(
        36, "a producer that begins again with what is stored is refused as out of order", ("T4", "C3"), budget=1_000
    ).edit(
        TopicPublisher._is_new,
        "if verdict is Verdict.UNDECIDED:",
        "if verdict is Verdict.DUPLICATE:\n"
        '        raise OutOfOrderError(f"sequence id {sequence_id} is out of order")\n'
        "    if verdict is Verdict.UNDECIDED:",
        OutOfOrderError=NotAllowedError,
    ),
    _bug(
        69,
        "a topic is opened by a broker that was overtaken before it read the cursors",
        ("T5",),
        budget=1_000,
        options={"faults": ("overtake", "reset")},
    ).edit(PersistentTopic._require_not_overtaken, "await self.log.check_owner()", "return"),
    _bug(
        71,
        "a consumer that gives messages back is not blocked any more, whatever it has left",
        ("V6",),
        budget=300,
        options={
            **_HELD,
            "subscriptions": ("key_shared",),
            "dispatch": {"unacked_messages_per_consumer_max": 3},
        },
    ).edit(UnackedCount.give_back, "self.is_blocked = 0 < self.limit <= self.messages", "self.is_blocked = False"),
    _bug(
        72,
        "acknowledgements do not let a blocked consumer continue",
        ("V6",),
        budget=300,
        options={**_HELD, "subscriptions": ("shared",), "dispatch": {"unacked_messages_per_consumer_max": 3}},
    ).edit(UnackedBook._subtract, "makes_room = was_blocked and not consumer.unacked.is_blocked", "makes_room = False"),
    _bug(73, "compaction takes each chunk for a message", ("C8",), budget=300, options=_COMPACTED)
    .edit(CompactionChoice.note, "chunk = head.chunk", "chunk = None")
    .edit(CompactionChoice.what_is_left, "if head.chunk is not None:", "if False:"),
    _bug(
        74,
        "the last message of a compacted view may be one that was compacted out",
        ("C8",),
        budget=300,
        options=_COMPACTED,
    ).edit(
        last_batch_index,
        "return max(left, default=metadata.num_messages_in_batch - 1)",
        "return metadata.num_messages_in_batch - 1",
    ),
    _bug(94, "a broker counts messages that could not be stored as publish memory forever", ("M1",), budget=50).edit(
        Session.publish_failed,
        "self._on_answered(len(run), sum(size for _, _, _, _, size, _ in run))",
        "self._on_answered(len(run), 0)",
    ),
    _bug(
        110,
        "a broker that stops deletes the ledger of a cursor before the cursor's node has its state",
        ("T5",),
        budget=100,
        options=_LEAVING,
    ).edit(
        LedgerCursorStorage.close,
        "if self._fits_node(snapshot):",
        "if self._fits_node(snapshot):\n"
        "            if self._ledger is not None:\n"
        "                await delete_quietly(self._ledger.ledger_id, self._context.client)",
    ),
    _bug(
        111,
        "a broker that loads a topic moves the cursor of deduplication before it has read the log",
        ("T4", "C2"),
        budget=300,
        options={**_LEAVING, "rewind": 0.3},
    )
    .edit(
        Deduplication._replay,
        "position = log_.chain.next_position(self._cursor.mark_delete)",
        "position = log_.chain.next_position(self._cursor.mark_delete)\n"
        "    self._cursor.acknowledge_to(log_.last_confirmed)\n"
        "    await self._cursor.flush()",
    )
    .edit(Deduplication.learn, "self._save_when_due()", "self._save()\n    await self._cursor.flush()"),
]
