"""Every planted bug, by its number in docs/simulation.md: production code with one mistake, and what must notice it.

Order:     a bug that shows only in a rare world names options that replace what a seed draws.
Read next: planting.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, Final

from magnetar.autorecovery.copy import CopySink
from magnetar.autorecovery.fragments import _check_positions
from magnetar.autorecovery.repair import LedgerRepair
from magnetar.bookie.identity import _require_all_stamped
from magnetar.bookie.journals import Replay
from magnetar.bookie.ledgers import Fencing, LedgerTable
from magnetar.bookie.reads import Reads, to_send
from magnetar.broker.cluster.ownership import BundleOwnership
from magnetar.broker.cluster.placement import Balancer
from magnetar.broker.dispatch.delayed_delivery import DelayedDelivery
from magnetar.broker.dispatch.single_active import SingleActiveDispatcher
from magnetar.broker.dispatch.unacked_book import UnackedBook
from magnetar.broker.policies.follower import NamespaceFollower
from magnetar.broker.publishing.dedup import Deduplication, SequenceIds
from magnetar.broker.publishing.topic_publisher import TopicPublisher
from magnetar.broker.pulsar.session import Session
from magnetar.broker.staged.copy import find_copied
from magnetar.broker.staged.publishing import StagedPublishing
from magnetar.broker.subscriptions.consumer import UnackedCount
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.upkeep import trim
from magnetar.errors import NotAllowedError
from magnetar.ids import BookieId
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import ChangeInMemory, compare_and_set
from magnetar.ledger.recovery.fence import FencingReads
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.ledger.recovery.recovery import Recovery, WriteBack, first_to_read
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.ledger.writing.repair import Repair
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.coverage import Meaning, RecoveryRead, absence_coverage
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.sim.disk import OpenFile
from magnetar.sim.mutants.planting import Mutant
from magnetar.staging.intents import Intents
from magnetar.staging.records import JobIdentity
from magnetar.staging.sink import Decision, Sink
from magnetar.staging.stager import Stager
from magnetar.staging.sweeper import _OwnerSweep
from magnetar.storage.entry_log.compaction import Compactor
from magnetar.storage.entry_log.writer import EntryLogWriter
from magnetar.storage.frames import lent
from magnetar.storage.journal.files import JournalFiles
from magnetar.storage.journal.journal import Journal
from magnetar.storage.journal.replay import Window, _Reader, later_group
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.reads import Reads as StorageReads
from magnetar.storage.tombstones import Tombstones
from magnetar.topic.compaction import CompactionChoice
from magnetar.topic.cursor.ledger_storage import LedgerCursorStorage
from magnetar.topic.entry_format.messages import last_batch_index

# --- ledgers ----------------------------------------------------------------------------------------------------------


class EarlyChange(ChangeInMemory):
    """Recovery's ensemble change, seen by every client before the ledger is closed."""

    def __init__(self, metadata: LedgerMetadata, context: LedgerContext) -> None:
        super().__init__(metadata)
        self._context = context.metadata

    async def write(self, first_entry_id: int, replacements: Mapping[int, BookieId]) -> None:
        await super().write(first_entry_id, replacements)

        def decide(found: LedgerMetadata) -> LedgerMetadata | None:
            return replace(found, fragments=self.metadata.fragments) if found.state is LedgerState.IN_RECOVERY else None

        stored = await self._context.ledgers.read(self.metadata.ledger_id)
        await compare_and_set(stored, decide, self._context)


_LEDGERS: Final = [
    Mutant(1, "an add is acknowledged by Qa − 1 bookies", ("L2",), budget=50).edit(
        PendingAdds.__init__, "self._ack_quorum = sizes.ack", "self._ack_quorum = sizes.ack - 1"
    ),
    Mutant(2, "a ledger is closed at the greatest LAC, without reading on behind it", ("L1",), budget=50).edit(
        RecoveryReads.next, "self._begin_more()", "return None"
    ),
    Mutant(3, "what recovery finds is not written back", ("L4",), budget=50).edit(
        Recovery._find_end, "await writes.add(entry)", "pass"
    ),
    Mutant(4, "one bookie that does not have the entry is enough", ("L11",), budget=300).edit(
        absence_coverage, "if absent >= sizes.absence:", "if absent >= 1:"
    ),
    Mutant(5, "a bookie that does not answer in time does not have the entry", ("L11", "L1"), budget=300).edit(
        RecoveryReads._decide,
        "answer.meaning)",
        "answer.meaning if answer.code is not None else Meaning.ABSENT)",
        Meaning=Meaning,
    ),
    Mutant(
        7,
        "the LAC goes over gaps: up to the last complete entry, not up to the first incomplete one",
        ("L6", "L2"),
        budget=300,
    )
    .edit(PendingAdds.take_confirmed, "for mask in self._masks:", "for at, mask in enumerate(self._masks, 1):")
    .edit(PendingAdds.take_confirmed, "break", "continue")
    .edit(PendingAdds.take_confirmed, "count += 1", "count = at"),
    Mutant(8, "the LAC moves while an ensemble change is being written", ("L6", "L2"), budget=300).edit(
        PendingAdds.hold, "self.is_held = True", "self.is_held = False"
    ),
    Mutant(9, "what a replaced bookie has acknowledged still counts", ("L6", "L2"), budget=300).edit(
        PendingAdds.forget, "kept = ~sum(1 << position for position in positions)", "kept = -1"
    ),
    Mutant(10, "metadata is written whatever its version is", ("L10", "L1"), budget=500).edit(
        LedgerMetadataStore.update, "encode(metadata), version)", "encode(metadata))"
    ),
    Mutant(11, "recovery writes its ensemble changes before it closes the ledger", ("L10", "L1"), budget=500).edit(
        WriteBack.__init__, "ChangeInMemory(metadata)", "EarlyChange(metadata, context)", EarlyChange=EarlyChange
    ),
    Mutant(
        12, "recovery reads from the bookies that it has put in the place of others", ("L10", "L1"), budget=500
    ).edit(
        Recovery._find_end,
        "last = entry\n",
        "last = entry\n            reads._asking.ensemble = writes.metadata.fragments[-1].ensemble\n",
    ),
    Mutant(17, "recovery reads do not fence", ("L9", "L8"), budget=500).edit(
        FencingReads._send,
        "fence_with=keys.master_key",
        "fence_with=keys.master_key if LAST_ENTRY in entry_ids else None",
    ),
    Mutant(
        25, "recovery begins behind the LAC alone, in an older fragment than the last one", ("L10",), budget=1_000
    ).edit(first_to_read, "max(lac, lac_floor(metadata)) + 1", "lac + 1"),
    Mutant(26, "an entry is found only if Qa bookies have it", ("V1",), budget=1_000).edit(
        RecoveryRead.on_answer,
        "if meaning is Meaning.PRESENT:",
        "self._present = getattr(self, '_present', 0) | bit * (meaning is Meaning.PRESENT)\n"
        "    if self._present.bit_count() >= self._sizes.ack:",
    ),
    Mutant(27, "a writer replaces bookies without a limit", ("V4",), budget=1_000).edit(
        Repair._count_change, "if len(times) >= config.ensemble_changes_max:", "if False:"
    ),
]


_HEALED: Final[dict[str, Any]] = {
    "healers": 2,
    "recovery": {"verify_all_entries": True, "chunk_bytes_max": 500, "retry_ms": 50, "open_ledger_grace_ms": 50},
    "bookies": 7,
    "heal_all": False,
    "faults": ("kill", "power", "part"),
}

_HEALING: Final = [
    Mutant(
        28, "a fragment names its new bookie before the copies are durable", ("R1",), budget=1_000, options=_HEALED
    ).edit(CopySink._add, "await share.done", "return"),
    Mutant(
        29,
        "a lost bookie is replaced by one that the fragment has already",
        ("R2", "L10"),
        budget=1_000,
        options=_HEALED,
    )
    .edit(
        LedgerRepair._swaps,
        "placed.ensemble[position] for position in some",
        "fragment.ensemble[(position + 1) % len(fragment.ensemble)] for position in some",
    )
    .edit(_check_positions, "if bookie in ensemble:", "if False:"),
    Mutant(30, "a mark is cleared without a look at the ledger", ("R4", "V3"), budget=1_000, options=_HEALED)
    .edit(
        LedgerRepair._run,
        "if found.waits:",
        "if found.waits:\n        return Outcome(OutcomeKind.REPAIRED)\n    if False:",
    )
    .edit(LedgerRepair._look_again, "if defects:", "if False:"),
]


# --- bookies that serve -----------------------------------------------------------------------------------------------


_HOSTILE: Final[dict[str, Any]] = {"faults": ("hostile",)}

_SERVING: Final = [
    Mutant(6, "a read error is answered as: no such entry", ("L9",), budget=300).edit(
        Reads.find, "return Found(Code.EIO, entry_id)", "return Found(Code.ENOENTRY, entry_id)"
    ),
    Mutant(16, "a fence is not journaled", ("L8", "L9"), budget=500).edit(
        Fencing._begin,
        "self._journal.submit(RecordKind.FENCE, (encode_fence(Fence(ledger.id, master_key)),), ledger.fencing)",
        "ledger.fencing.set_result(None)",
    ),
    Mutant(18, "a second fence is answered before the first is durable", ("L8", "L9"), budget=500).edit(
        Fencing.fence,
        "if ledger.fencing is not None:",
        "elif True:\n        return Code.EOK\n    if ledger.fencing is not None:",
    ),
    Mutant(19, "a fence is dropped when the ledger leaves the table in memory", ("L8",), budget=500).edit(
        LedgerTable._let_one_go,
        "self._let_go[ledger_id] = ledger\n",
        "self._storage.set_flags(ledger_id, dataclasses.replace(ledger.flags, fenced=False))\n",
    ),
    Mutant(20, "a fence is dropped when the ledger is deleted", ("L8",), budget=500)
    .edit(LedgerStorage.delete_ledger, "if flags is not None and flags.fenced:\n", "if False:\n")
    .edit(
        LedgerStorage.delete_ledger,
        "if late is not None and late.fenced and",
        "if flags is None and late is not None and",
    ),
    Mutant(21, "a bookie whose disk is empty serves", ("B7",), budget=500).edit(
        _require_all_stamped, "if lost:", "if False:"
    ),
    Mutant(24, "replay skips fences", ("B2",), budget=1_000).edit(
        Replay.deliver, "case RecordKind.FENCE:", "case RecordKind.FENCE if False:"
    ),
    Mutant(90, "answers keep whole chunks of the read cache in memory", ("M1",), budget=100)
    .edit(Reads._serve_some, "lend(parts, settled)  # The caches may let go of these chunks meanwhile.\n", "pass\n")
    .edit(
        to_send,
        "if sum(map(len, parts)) <= _JOIN_BYTES_MAX * len(parts):",
        "if True:\n        return parts\n    if parts:",
    )
    .edit(lent, "if len(entry) * KEPT_PER_BYTE >= _chunk_bytes(entry) else bytes(entry)", ""),
    Mutant(91, "unfinished frames take as much memory as clients send", ("M1",), budget=50, options=_HOSTILE).edit(
        ReceiveMemory.may_take, "if self.kept_bytes + more_bytes <= self.bytes_max:", "if True:"
    ),
    Mutant(92, "a frame that does not continue keeps its connection", ("M1",), budget=50, options=_HOSTILE).edit(
        ReceiveMemory._check_timeout, "if owner.is_excused or", "if True or owner.is_excused or"
    ),
    Mutant(93, "each combination of flag bits is a context of its own", ("M1",), budget=50, options=_HOSTILE).edit(
        LedgerTable.admit, "and not flags & ~Flag.ALL", ""
    ),
]


# --- disks of bookies -------------------------------------------------------------------------------------------------


_DISKS: Final = [
    Mutant(13, "an add is acknowledged when its group is written, not when it is synced", ("B1",), budget=500)
    .edit(
        Journal._write,
        "await file.append_and_sync(chunks)",
        "await file.append(chunks)\n    self._announce(group)\n    await file.sync()",
    )
    .edit(Journal._write, "if self._failure is None:", "if False:"),
    Mutant(14, "a torn tail is not cut off before the journal goes on", ("B2", "B3"), budget=500).edit(
        JournalFiles._make_durable, "if file.size > found.end:", "if False:"
    ),
    Mutant(15, "damage in the middle of the journal is taken for a torn tail", ("B3",), budget=500)
    .edit(_Reader.run, "if not may_be_torn and not self._is_reused:", "if False:")
    .edit(_Reader.run, "if later is not None:", "if False:"),
    Mutant(22, "the mark moves when one of two directories is synced", ("B4",), budget=1_000).edit(
        EntryLogWriter.sync,
        "for log in self._unsynced:",
        "for log in [log for log in self._unsynced if log.directory is self._unsynced[0].directory]:",
    ),
    Mutant(23, "compaction removes the old log before the index refers to the new one", ("B6",), budget=1_000)
    .edit(
        Compactor._copy_all,
        "await copy.commit()\n",
        "await copy._write()\n    await self._remove(log_id)\n    await copy.commit()\n",
    )
    .edit(Compactor._rewrite, "    await self._remove(log_id)\n", ""),
    # The disk itself refuses a file whose sync has failed, so a journal that tried again would only meet the same
    # failure. The bug must therefore be in the disk, of which a world has the twin.
    Mutant(40, "a sync that failed is tried again", ("B8", "B2"), budget=500).edit(
        OpenFile.sync_anyway,
        'raise self._refuse(f"syncing {self._name} failed: {reason(error)}") from error',
        "self._device.sync(self._image)",
    ),
    Mutant(80, "a file that ends with a closing group is taken for durable", ("B9", "B2"), budget=500).edit(
        JournalFiles._make_durable,
        "await file.write_again(found.last_group, group)",
        "if header is None or header.records: await file.write_again(found.last_group, group)",
    ),
    Mutant(81, "a journal is searched for its mark, which clients know", ("V8",), budget=0)
    .edit(later_group, "pattern = file_id_bytes(file_id)", 'pattern = b"MNJG"')
    .edit(later_group, "offset + FILE_ID_OFFSET)", "offset)")
    .edit(later_group, "intact_group(window, file_id, found - FILE_ID_OFFSET)", "intact_group(window, file_id, found)")
    .edit(later_group, "return found - FILE_ID_OFFSET", "return found"),
    Mutant(82, "a journal file is read anew for every group", ("V8",), budget=0).edit(
        Window.at, "if offset < self._start or", "if length or"
    ),
    Mutant(83, "a deleted ledger is remembered as fenced for minutes, not for days", ("L8", "V7"), budget=0).edit(
        Tombstones.due, "self._config.tombstone_days * _DAY_MS", "self._config.tombstone_days * 60_000"
    ),
    Mutant(84, "a deleted ledger is remembered as fenced forever", ("V7",), budget=0).edit(
        Tombstones.due, "if each.deleted_at_ms < before_ms", "if each.deleted_at_ms < 0"
    ),
    Mutant(85, "a wall clock that jumps ahead lets the fences of deleted ledgers go", ("V7", "L8"), budget=0).edit(
        Tombstones._now_ms,
        "min(self._entropy.wall_ms(), self._wall_ms + int(lived_ms) + _TOLERANCE_MS)",
        "self._entropy.wall_ms()",
    ),
    Mutant(
        86,
        "an entry that stands in a damaged block is denied",
        ("B5", "L9"),
        budget=100,
        options={"faults": ("ruin", "kill")},
    ).edit(StorageReads._another_copy, "raise first_error", "return None"),
]


# --- topics -----------------------------------------------------------------------------------------------------------


_topic_bug = partial(Mutant, kind="topics")

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

_TOPICS: Final = [
    _topic_bug(34, "a sequence id is recorded before its message is durable", ("T4", "C1"), budget=1_000).edit(
        SequenceIds.judge,
        "self._pushed[producer] = max(sequence_id, highest_sequence_id)",
        "self._pushed[producer] = max(sequence_id, highest_sequence_id)\n"
        "        self.persisted[producer] = max(sequence_id, highest_sequence_id)",
    ),
    _topic_bug(35, "a topic serves before it knows what its producers have stored", ("T4", "C2"), budget=1_000).edit(
        TopicPublisher.begin,
        "await self.switch_dedup()",
        "self._dedup_switch = self._loop.create_task(self._switch_dedup_until_as_wanted())",
    ),
    _topic_bug(
        36, "a producer that begins again with what is stored is refused as out of order", ("T4", "C3"), budget=1_000
    ).edit(
        TopicPublisher._is_new,
        "if verdict is Verdict.UNDECIDED:",
        "if verdict is Verdict.DUPLICATE:\n"
        '        raise OutOfOrderError(f"sequence id {sequence_id} is out of order")\n'
        "    if verdict is Verdict.UNDECIDED:",
        OutOfOrderError=NotAllowedError,
    ),
    _topic_bug(
        69,
        "a topic is opened by a broker that was overtaken before it read the cursors",
        ("T5",),
        budget=1_000,
        options={"faults": ("overtake", "reset")},
    ).edit(PersistentTopic._require_not_overtaken, "await self.log.check_owner()", "return"),
    _topic_bug(
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
    _topic_bug(
        72,
        "acknowledgements do not let a blocked consumer continue",
        ("V6",),
        budget=300,
        options={**_HELD, "subscriptions": ("shared",), "dispatch": {"unacked_messages_per_consumer_max": 3}},
    ).edit(UnackedBook._subtract, "makes_room = was_blocked and not consumer.unacked.is_blocked", "makes_room = False"),
    _topic_bug(73, "compaction takes each chunk for a message", ("C8",), budget=300, options=_COMPACTED)
    .edit(CompactionChoice.note, "chunk = head.chunk", "chunk = None")
    .edit(CompactionChoice.what_is_left, "if head.chunk is not None:", "if False:"),
    _topic_bug(
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
    _topic_bug(
        75,
        "an Exclusive consumer that gives messages back gets them when the next permit or message comes",
        ("V6",),
        budget=300,
        options={**_HELD, "subscriptions": ("exclusive",)},
    ).edit(SingleActiveDispatcher.redeliver, "self.schedule()", "pass"),
    _topic_bug(
        76,
        "a Failover consumer that takes over gets messages when the next permit or message comes",
        ("V6",),
        budget=300,
        options={**_HELD, "subscriptions": ("failover",), "consumers": 3},
    ).edit(SingleActiveDispatcher._begin, "self.schedule()", "pass"),
    _topic_bug(
        94, "a broker counts messages that could not be stored as publish memory forever", ("M1",), budget=50
    ).edit(
        Session.publish_failed,
        "self._on_answered(len(run), sum(size for _, _, _, _, size, _ in run))",
        "self._on_answered(len(run), 0)",
    ),
    _topic_bug(
        110,
        "a broker that stops deletes the ledger of a cursor before the cursor's node has its state",
        ("T5",),
        budget=100,
        options=_LEAVING,
    ).edit(
        LedgerCursorStorage.close,
        "if self._fits_node(snapshot) and not has_batches:",
        "if self._fits_node(snapshot) and not has_batches:\n"
        "            if self._ledger is not None:\n"
        "                await delete_quietly(self._ledger.ledger_id, self._context.client)",
    ),
    _topic_bug(
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


# --- bundles ----------------------------------------------------------------------------------------------------------


_bundle_bug = partial(Mutant, kind="bundles")

_BALANCED: Final[dict[str, Any]] = {"balances": True, "faults": (), "duration_s": 0.5, "brokers": 2, "topics": 3}


async def _tried_once(attempt: Callable[[bool], Awaitable[Any]], *_: object, **__: object) -> Any:
    return await attempt(False)


_LOSSY: Final[dict[str, Any]] = {"faults": ("meta",), "fault_gap_s": 0.15, "takeover_gap_s": 0.1}
"""Answers of the metadata store get lost, while bundles move all the time."""

_LONELY: Final[dict[str, Any]] = {
    "balances": True,
    "faults": ("session",),
    "session_expired_policy": "reconnect",
    "think_s": 2.0,
}
"""Few messages: a broker that owns a topic no more does not hear it from the bookies."""

_POLICIES: Final[dict[str, Any]] = {"command_gap_s": 0.05, "faults": ()}

_BUNDLES: Final = [
    _bundle_bug(
        31,
        "a lost connection is taken for a failure: the broker does not look whether its change was made",
        ("V9", "V2"),
        budget=300,
        options=_LOSSY,
    ).edit(
        BundleOwnership._change,
        "return await try_until_known(",
        "return await tried_once(",
        tried_once=_tried_once,
    ),
    _bundle_bug(32, "a broker adopts the node that its own former session has left", ("T3",), budget=300)
    .edit(
        BundleOwnership._acquire_alone,
        "if found is not None and found.owner != session.id:",
        "if found is not None and OwnerNode.parse(path, found.value).address.broker_id != self._id:",
    )
    .edit(BundleOwnership._acquire_alone, "creator if found is None else found.owner", "session.id"),
    _bundle_bug(33, "an unload that is late ends the next ownership of the bundle", ("T3",), budget=1_000).edit(
        BundleOwnership._delete, "if node is None or node.owner != self._store.session.id:", "if node is None:"
    ),
    _bundle_bug(
        120, "the leader moves bundles although that makes nothing better", ("V9",), budget=20, options=_BALANCED
    ).edit(Balancer._best_move, "if after < before and (best is None", "if (best is None"),
    _bundle_bug(
        121, "topics of a bundle that another broker has taken are not unloaded", ("T6",), budget=100, options=_LONELY
    ).edit(BundleOwnership._lose, "lost(held.bundle, None)", "pass"),
    _bundle_bug(
        122, "policies of a namespace are read once, and not followed", ("T7",), budget=50, options=_POLICIES
    ).edit(
        NamespaceFollower._follow_document, "self.document_ready.set()", "self.document_ready.set()\n            return"
    ),
    _bundle_bug(123, "a deleted topic stays", ("T7",), budget=50, options=_POLICIES).edit(
        PersistentTopic.delete, "await self.log.delete()", "await self.log.aclose()"
    ),
    _bundle_bug(
        124,
        "delayed messages are delivered at once",
        ("T8",),
        budget=20,
        options={"delays": 0.5, "subscriptions": ("shared",), "faults": ()},
    ).edit(DelayedDelivery.delay, "if deliver_at_ms <= self._cutoff_ms():", "if deliver_at_ms:"),
    _bundle_bug(
        125,
        "trimming does not look at what subscriptions have acknowledged",
        ("T5", "C7", "C4"),
        budget=50,
        options={"trims": True, "compacts": False},
    ).edit(trim, "LATEST if consumed is None else consumed", "LATEST"),
]


# --- staging ----------------------------------------------------------------------------------------------------------


_staging_bug = partial(Mutant, kind="staging")

_STRUCK: Final = {"strike": 0.3}
"""Most of these bugs show when a process dies, or stands still, at the right place."""

_SWEPT: Final = {"ttl_ms": 50, "sweep_gap_s": 0.05, "sweepers": 2, "finish_after_ms": 3_600_000}
"""Sweepers that find everything old."""

_RACING: Final = {"faults": ("points", "drivers"), "points": ("before-intent",), "strike": 0.5, "epochs": 6}
"""Drivers that stand still between looking and deciding, while others continue."""

_SAVES: Final = {"saves": 1, "jobs": 0, "epochs": 2, "topics": 2}
"""Batches that are saved to two topics, with one job id."""

_owner_of_a_job = JobIdentity.owner.fget  # type: ignore[attr-defined]

assert _owner_of_a_job is not None

_STAGING: Final = [
    _staging_bug(
        60,
        "the intent step is taken out: every commit publishes what it has staged itself",
        ("I6", "I1", "I2"),
        budget=100,
        options=_STRUCK,
    ).edit(
        Decision.decide,
        "if record.decided > record.last_done:",
        "if record.decided == epoch:\n"
        "            await self._intents.delete(epoch)\n"
        "        elif record.decided > record.last_done:",
    ),
    _staging_bug(61, "the sweeper deletes what an intent names", ("I7",), budget=100, options=_SWEPT).edit(
        _OwnerSweep._spare_named, "if each.ledger_id not in named", "if True"
    ),
    _staging_bug(
        62, "a copy that is taken up again does not count what is there", ("I1",), budget=200, options=_STRUCK
    ).edit(find_copied, "Copied(expected.met, oldest_ms)", "Copied(0, oldest_ms)"),
    _staging_bug(
        63,
        "an abort deletes what was staged, though its commit may have taken effect",
        ("I7", "I9"),
        budget=200,
        options={**_STRUCK, "patience_s": 0.0, "finish_after_ms": 3_600_000},
    ).edit(
        Sink.abort,
        "kept = sum(each is not None for each in staged)",
        "kept = 0\n"
        "    for part in [part for each in staged for part in each.parts]:\n"
        "        await self._delete_ledger(Register(self._store, owner), part.ledger_id)",
    ),
    _staging_bug(
        64,
        "an epoch is decided and published before the one before it is done",
        ("I3", "I1"),
        budget=200,
        options={"careless": True, "patience_s": 0.0, "finish_after_ms": 3_600_000},
    ).edit(
        Decision.decide,
        "await self._finish_earlier(self._ours.owner, record.decided)",
        "if await self._try(found):\n                    return self._ours if self._ours.parts else None",
    ),
    # No sweeper runs in time: it would take what the late driver has staged.
    _staging_bug(
        65,
        "an intent is created whatever the version of the owner's record is",
        ("I3", "I7"),
        budget=300,
        options={**_RACING, "sweep_gap_s": 20.0},
    ).edit(Intents.create, "record.to_bytes(), found.version)", "record.to_bytes())"),
    _staging_bug(
        66, "a topic does not note that an epoch is being copied, before it is", ("I1",), budget=200, options=_STRUCK
    ).edit(StagedPublishing._copy_new, "await topic.set_property(key, progress.to_text())", "pass"),
    _staging_bug(
        67, "an epoch is noted as done before it is published", ("I1", "I2", "I3"), budget=200, options=_STRUCK
    ).edit(Sink.complete, "topics = intent.topics", "topics = intent.topics\n    await self._note_done(intent)"),
    _staging_bug(
        68,
        "a sweeper does not say what it is about to delete, and no driver looks whether it did",
        ("I7",),
        budget=200,
        options={**_SWEPT, **_RACING},
    )
    .edit(_OwnerSweep._doom, "await self._node.put(record, found.version)", "pass")
    .edit(Intents.create, "Check(registration_path(self.owner, intent.parts[0].ledger_id)),", ""),
    _staging_bug(
        70,
        "a task that repeats a decided epoch fails when a sweeper takes its ledgers away",
        ("I11",),
        budget=100,
        options={**_STRUCK, "sweep_gap_s": 0.05},
    ).edit(Stager._was_for_nothing, "if found is None or found.record.decided < self._staged.epoch:", "if True:"),
    _staging_bug(
        100,
        "the target is no part of a job: of several saves with one job id only the first is written",
        ("I1",),
        budget=20,
        options=_SAVES,
    ).edit(_owner_of_a_job, "hashlib.sha256(self.target.encode())", "hashlib.sha256(b'')"),
    _staging_bug(
        101,
        "a run that comes late decides on a job again that is done",
        ("I10", "I6", "I1"),
        budget=100,
        options={**_SAVES, **_STRUCK},
    ).edit(Decision.decide, "if record.last_done >= epoch:", "if record.last_done >= epoch and not self._is_job:"),
    _staging_bug(
        102,
        "an intent whose driver ended after its epoch was done stays, and so do its ledgers",
        ("I10",),
        budget=100,
        options={**_SAVES, "patience_s": 0.0},
    ).edit(_OwnerSweep.finish, "if node is not None and", "if node is not None and epoch > found.record.last_done and"),
]


# --- all of them ------------------------------------------------------------------------------------------------------


_ALL: Final = [*_LEDGERS, *_HEALING, *_SERVING, *_DISKS, *_TOPICS, *_BUNDLES, *_STAGING]
MUTANTS: Final[dict[int, Mutant]] = {mutant.number: mutant for mutant in sorted(_ALL, key=lambda known: known.number)}
assert len(MUTANTS) == len(_ALL), "a number is given twice"
