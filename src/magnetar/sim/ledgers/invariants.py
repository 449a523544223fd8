"""Every invariant of ledgers and bookies, one class each; the ids are those of docs/simulation.md.

- acks: what an acknowledgement means, at the moment it is given: L1, L2, L6, L7.
- content: what is stored, and what a reader gets of it: L3, L4, L5.
- fencing: taking a ledger from its writer: L8, L9, L11.
- metadata: how it may change, and who may change it: L10.
- bookies: what their disks hold, what a start makes of it, and what they may answer: B1 to B9.
- limits: what must end or stay small: V4, V5.
- memory: what a bookie holds: M1. It counts the buffers themselves, found where they are: in what connections keep, in
  answers that wait, in the frames of coroutines that make answers, in caches. The bookie's own counters, which its
  limits and metrics use, must agree with them. It looks at some of the bookie's answers; what is handled at that moment
  is left out.
- elsewhere: V1 and V2 have no class: they are about calls that do not end, and the callers see that (workload.py,
  scenario.py).
"""

from __future__ import annotations

import asyncio
import gc
import struct
import types
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, Final

from magnetar.errors import (
    CookieMismatchError,
    DigestMismatchError,
    JournalDamagedError,
    MarkDamagedError,
    StorageDamagedError,
)
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.quorum.sizes import write_set
from magnetar.runtime.receiving import SMALL_BYTES
from magnetar.sim.device import Fault
from magnetar.sim.ledgers.durable import EXTENT
from magnetar.sim.ledgers.options import is_healer
from magnetar.sim.ledgers.watch import (
    AddAnswer,
    BookieWatch,
    Invariant,
    LacAnswer,
    LedgerChange,
    LedgerHistory,
    ReadAnswer,
    Watch,
)
from magnetar.storage.entry_log.format import log_path
from magnetar.storage.frames import KEPT_PER_BYTE
from magnetar.storage.index.extents import Extent, decode
from magnetar.storage.index.ordered_store import Changes
from magnetar.storage.write_cache import ENTRY_OVERHEAD_BYTES
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import Flag

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie
    from magnetar.bookie.connection import Connection
    from magnetar.runtime.receiving import ReceiveMemory


# --- acknowledgements -------------------------------------------------------------------------------------------------


class NoTruncation(Invariant):
    """L1: a ledger is closed after all that was acknowledged, and nothing beyond its end ever is."""

    id = "L1"

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:  # noqa: ARG002
        metadata = self.watch.metadata(ledger.ledger_id)
        if metadata is not None and metadata.is_closed and last > metadata.last_entry_id:
            self.violated(f"ledger {ledger.ledger_id} ends with {metadata.last_entry_id}, and {last} was acknowledged")

    def on_ledger_change(self, change: LedgerChange) -> None:
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is None or change.after is None:
            return
        end = change.after.value.last_entry_id
        if change.after.value.is_closed and end < ledger.acked:
            self.violated(f"ledger {change.ledger_id} was closed at {end} by {change.by}; {ledger.acked} was acked")


class AckIsDurable(Invariant):
    """L2: an acknowledged entry is durable on Qa bookies of its write set, as the metadata has it at that moment."""

    id = "L2"

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:  # noqa: ARG002
        known = self.watch.ledgers.get(ledger.ledger_id)
        if known is not None:  # Otherwise deleted: bookies may have dropped it.
            self._check(known.value, range(first, last + 1), "was acknowledged")

    def on_ledger_change(self, change: LedgerChange) -> None:
        """A change of the ensemble may not lose acknowledged entries."""
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is None or change.after is None or change.after.value.state is not LedgerState.OPEN:
            return
        first = change.after.value.fragments[-1].first_entry_id
        self._check(change.after.value, range(first, ledger.acked + 1), "was acknowledged before its bookies changed")

    def _check(self, metadata: LedgerMetadata, entry_ids: Sequence[int], what: str) -> None:
        for entry_id in entry_ids:
            holders = self.watch.holders(metadata, entry_id)
            if len(holders) < metadata.ack_quorum:
                names = [bookie.name for bookie in holders]
                self.violated(f"entry {entry_id} of ledger {metadata.ledger_id} {what}, and is durable only on {names}")


class AcksInOrder(Invariant):
    """L6: acknowledged one after the other, each with its own token; none while an ensemble change is written."""

    id = "L6"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._changing: dict[tuple[int, str], int] = {}

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:
        if first != ledger.acked + 1:
            self.violated(f"entry {first} of ledger {ledger.ledger_id} was acknowledged after {ledger.acked}")
        if list(tokens) != list(range(first, last + 1)):
            self.violated(f"entries {first} to {last} of ledger {ledger.ledger_id} were acknowledged as {list(tokens)}")
        if self._changing.get((ledger.ledger_id, ledger.writer)):
            self.violated(f"entry {last} of ledger {ledger.ledger_id} was acknowledged while its bookies were replaced")

    def on_change_asked(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        if wanted.state is LedgerState.OPEN:
            self._changing[ledger_id, by] = self._changing.get((ledger_id, by), 0) + 1

    def on_change_answered(self, ledger_id: int, by: str, wanted: LedgerMetadata) -> None:
        if wanted.state is LedgerState.OPEN:
            self._changing[ledger_id, by] -= 1


class LacTowardsReaders(Invariant):
    """L7: no LAC beyond the writer's is sent or seen; a reader's never goes back, and bounds what it is given."""

    id = "L7"

    def on_adds_received(
        self, bookie: BookieWatch, ledger_id: int, entry_ids: Sequence[int], lacs: Sequence[int]
    ) -> None:
        ledger = self.watch.history.ledgers.get(ledger_id)
        if ledger is not None and max(lacs) > self._end(ledger):
            self.violated(f"entries {entry_ids} of ledger {ledger_id} carry LACs up to {max(lacs)} to {bookie.name}")

    def on_lac_answer(self, answer: LacAnswer) -> None:
        ledger = self.watch.history.ledgers.get(answer.ledger_id)
        if ledger is not None and answer.lac > self._end(ledger):
            self.violated(f"{answer.bookie.name} was told of LAC {answer.lac} of ledger {answer.ledger_id}")

    def on_lac_seen(self, ledger: LedgerHistory, reader: str, before: int, lac: int) -> None:
        if lac > self._end(ledger):
            self.violated(f"{reader} sees LAC {lac} of ledger {ledger.ledger_id}; the writer's is {ledger.acked}")
        if lac < before:
            self.violated(f"the LAC of ledger {ledger.ledger_id} goes back from {before} to {lac} for {reader}")

    def on_read(self, ledger: LedgerHistory, reader: str, entry_id: int, payload: bytes, lac: int) -> None:  # noqa: ARG002
        if entry_id > lac or entry_id > self._end(ledger):
            self.violated(f"{reader} read entry {entry_id} of ledger {ledger.ledger_id} beyond its LAC {lac}")

    def _end(self, ledger: LedgerHistory) -> int:
        metadata = self.watch.metadata(ledger.ledger_id)
        if metadata is not None and metadata.is_closed:
            return int(metadata.last_entry_id)
        return ledger.acked


# --- content ----------------------------------------------------------------------------------------------------------

_LENGTH: Final = struct.Struct(">q")
_LENGTH_AT: Final = 24  # In an entry, after ledger id, entry id and LAC.


class AckedIsReadable(Invariant):
    """L3: every acknowledged entry is read, with the bytes that were sent.

    sim/ledgers/scenario.py sees that it is read at all.
    """

    id = "L3"

    def on_read(self, ledger: LedgerHistory, reader: str, entry_id: int, payload: bytes, lac: int) -> None:  # noqa: ARG002
        if entry_id >= len(ledger.payloads) or payload != ledger.payloads[entry_id]:
            self.violated(f"{reader} read other bytes than were sent as entry {entry_id} of ledger {ledger.ledger_id}")


class ClosedIsReplicated(Invariant):
    """L4: every entry of a closed ledger is on Qa bookies of its write set."""

    id = "L4"

    def at_end(self) -> None:
        for ledger_id, known in self.watch.ledgers.items():
            metadata = known.value
            if not metadata.is_closed:
                continue
            for entry_id in range(metadata.last_entry_id + 1):
                holders = self.watch.holders(metadata, entry_id)
                if len(holders) < metadata.ack_quorum:
                    names = [bookie.name for bookie in holders]
                    self.violated(f"entry {entry_id} of the closed ledger {ledger_id} is only on {names}")


class OneBody(Invariant):
    """L5: every copy of an entry has the payload and the length field that its writer sent; the close has the sum."""

    id = "L5"

    def on_stored(self, bookie: BookieWatch, ledger_id: int, entry_id: int, body: bytes) -> None:
        ledger = self.watch.history.ledgers.get(ledger_id)
        if ledger is None:
            return
        if entry_id >= len(ledger.payloads):
            self.violated(f"{bookie.name} stored entry {entry_id} of ledger {ledger_id}, which no client sent")
            return
        (length,) = _LENGTH.unpack_from(body, _LENGTH_AT)
        if length != ledger.lengths[entry_id] or body[ledger.digest.overhead_bytes :] != ledger.payloads[entry_id]:
            self.violated(f"{bookie.name} stored entry {entry_id} of ledger {ledger_id} other than it was sent")

    def on_ledger_change(self, change: LedgerChange) -> None:
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is None or change.after is None or not change.after.value.is_closed:
            return
        last, length = change.after.value.last_entry_id, change.after.value.length
        if last >= len(ledger.payloads):
            self.violated(f"ledger {change.ledger_id} was closed at {last}, which no client sent")
        elif length != ledger.length_at(last):
            self.violated(f"ledger {change.ledger_id} was closed at {last} with length {length}")


# --- fencing and recovery ---------------------------------------------------------------------------------------------

_NO = (Code.ENOENTRY, Code.ENOLEDGER)


class FenceIsForEver(Invariant):
    """L8: after the answer to a fence, no plain add of the ledger succeeds at that bookie, whatever happens to it."""

    id = "L8"

    def on_add_answer(self, answer: AddAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or answer.recovery or bookie.may_deny:
            return
        if answer.ledger_id in bookie.fenced:
            self.violated(
                f"{bookie.name} stored entry {answer.entry_id} of ledger {answer.ledger_id}, which it had fenced"
            )


class NoIsAPromise(Invariant):
    """L9: what a bookie denied to a recovery it never takes from the writer; and it denies nothing that it has."""

    id = "L9"

    def on_add_answer(self, answer: AddAnswer) -> None:
        bookie, key = answer.bookie, (answer.ledger_id, answer.entry_id)
        if answer.code == Code.EOK and not answer.recovery and key in bookie.denied and not bookie.may_deny:
            self.violated(f"{bookie.name} stored entry {key[1]} of ledger {key[0]}, which it had denied to a recovery")

    def on_read_answer(self, answer: ReadAnswer) -> None:
        if answer.fence and answer.code in _NO and has_promised(self.watch, answer):
            self.violated(
                f"{answer.bookie.name} denied entry {answer.entry_id} of ledger {answer.ledger_id} to a recovery, and "
                "had stored it"
            )


def has_promised(watch: Watch, answer: ReadAnswer) -> bool:
    """The bookie had acknowledged what it denies before it was asked, and has no excuse."""
    bookie = answer.bookie
    stored = bookie.promised.get(answer.ledger_id)
    if not stored or answer.ledger_id not in watch.ledgers or bookie.may_deny:
        return False
    when = min(stored.values()) if answer.entry_id < 0 else stored.get(answer.entry_id)
    return when is not None and when < answer.received_s


class RecoveryNeverGuesses(Invariant):
    """L11: a recovery closes a ledger at e − 1 only when Qw − Qa + 1 bookies denied e to it."""

    id = "L11"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._denied: dict[tuple[str, int, int], dict[str, None]] = {}

    def on_read_answer(self, answer: ReadAnswer) -> None:
        if answer.fence and answer.code in _NO:
            key = answer.client, answer.ledger_id, answer.entry_id
            self._denied.setdefault(key, {})[answer.bookie.bookie_id] = None

    def on_ledger_change(self, change: LedgerChange) -> None:
        before, after = change.before, change.after
        if before is None or after is None or not after.value.is_closed or before.value.is_closed:
            return
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is not None and ledger.closing and change.by == ledger.writer:
            return  # Its writer knows where it ends.
        metadata = before.value
        if metadata.state is not LedgerState.IN_RECOVERY:
            return
        end = after.value.last_entry_id + 1
        ensemble = metadata.fragments[-1].ensemble
        asked = [ensemble[p] for p in write_set(metadata.ensemble_size, metadata.write_quorum, end)]
        denied = self._denied.get((change.by, change.ledger_id, end), {})
        count = sum(bookie in denied for bookie in asked)
        needed = metadata.write_quorum - metadata.ack_quorum + 1
        if count < needed:
            self.violated(
                f"{change.by} closed ledger {change.ledger_id} at {end - 1}; {count} bookies denied {end}, not {needed}"
            )


# --- metadata ---------------------------------------------------------------------------------------------------------

_NEXT = {
    LedgerState.OPEN: (LedgerState.OPEN, LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.IN_RECOVERY: (LedgerState.IN_RECOVERY, LedgerState.CLOSED),
    LedgerState.CLOSED: (LedgerState.CLOSED,),
}


class LedgerMetadataChanges(Invariant):
    """L10: one version at a time; open, in recovery, closed, and never back; only the end of an open ledger moves."""

    id = "L10"

    def on_ledger_change(self, change: LedgerChange) -> None:
        if change.after is None:
            return
        what = f"ledger {change.ledger_id} v{change.after.version} by {change.by}"
        for fragment in change.after.value.fragments:
            if len(dict.fromkeys(fragment.ensemble)) != len(fragment.ensemble):
                self.violated(f"{what}: {fragment.ensemble} has a bookie twice")
        if change.before is None:
            if change.after.version != 0 or change.after.value.state is not LedgerState.OPEN:
                self.violated(f"{what}: it was created {change.after.value.state.name}")
            return
        if change.after.version != change.before.version + 1:
            self.violated(f"{what}: it follows version {change.before.version}")
        complaint = _complaint(change.before.value, change.after.value)
        if complaint:
            self.violated(f"{what}: {complaint}")
        self._check_author(change, what)

    def _check_author(self, change: LedgerChange, what: str) -> None:
        """Only its writer replaces bookies at the end of an open ledger, or closes it without a recovery."""
        assert change.before is not None
        assert change.after is not None
        ledger = self.watch.history.ledgers.get(change.ledger_id)
        if ledger is None or change.before.value.state is not LedgerState.OPEN:
            return
        if is_healer(change.by) and change.after.value.state is LedgerState.OPEN:  # R3 looks at these.
            return
        if change.after.value.state is not LedgerState.IN_RECOVERY and change.by != ledger.writer:
            self.violated(f"{what}: {change.after.value.state.name}, and its writer is {ledger.writer}")


def _complaint(before: LedgerMetadata, after: LedgerMetadata) -> str | None:
    if after.state not in _NEXT[before.state]:
        return f"from {before.state.name} to {after.state.name}"
    if _fixed(before) != _fixed(after):
        return "quorums, digest or password changed"
    match before.state, after.state:
        case LedgerState.CLOSED, _:
            if (before.last_entry_id, before.length) != (after.last_entry_id, after.length):
                return f"its end moved from {before.last_entry_id} to {after.last_entry_id}"
            return None if _is_swap(before.fragments, after.fragments) else "the fragments of a closed ledger changed"
        case LedgerState.OPEN, LedgerState.IN_RECOVERY:
            return None if before.fragments == after.fragments else "the fragments changed when recovery began"
        case LedgerState.IN_RECOVERY, LedgerState.IN_RECOVERY:
            is_swap = before.fragments[-1] == after.fragments[-1] and _is_swap(before.fragments, after.fragments)
            return None if is_swap else "the last fragment changed during a recovery"
    return _end_changed(before, after)


def _end_changed(before: LedgerMetadata, after: LedgerMetadata) -> str | None:
    """The last fragment may be replaced, or be followed by others; those before it stay, but for a swap."""
    kept = len(before.fragments) - 1
    if not _is_swap(before.fragments[:kept], after.fragments[:kept]):
        return "a fragment before the last one changed"
    if len(after.fragments) <= kept or after.fragments[kept].first_entry_id != before.fragments[kept].first_entry_id:
        return "the last fragment begins elsewhere"
    return None


def _is_swap(before: tuple[Fragment, ...], after: tuple[Fragment, ...]) -> bool:
    return [fragment.first_entry_id for fragment in before] == [fragment.first_entry_id for fragment in after]


def _fixed(metadata: LedgerMetadata) -> tuple[object, ...]:
    sizes = metadata.ensemble_size, metadata.write_quorum, metadata.ack_quorum
    return (*sizes, metadata.digest_type, metadata.password, metadata.c_token)


# --- disks ------------------------------------------------------------------------------------------------------------

_LEDGER: Final = struct.Struct(">Q")
DAMAGE: Final = (JournalDamagedError, StorageDamagedError, MarkDamagedError, CookieMismatchError)
"""Why a bookie refuses to start, for good."""


class Replay(Invariant):
    """B2: after any crash a bookie starts, and knows again all that it answered."""

    id = "B2"

    def on_bookie_refused(self, bookie: BookieWatch, error: BaseException) -> None:
        if isinstance(error, DAMAGE) and not bookie.is_excused:
            self.violated(f"{bookie.name} refuses to start, and nothing was done to its disks: {error}")

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        if bookie.is_excused:
            return
        for ledger_id, entries in bookie.promised.items():
            if ledger_id not in self.watch.ledgers:
                continue
            lost = [entry_id for entry_id in entries if not _knows(bookie, opened, ledger_id, entry_id)]
            if lost:
                self.violated(f"{bookie.name} does not know entries {lost} of ledger {ledger_id} after its start")
        for ledger_id in bookie.fenced:
            flags = opened._storage._flags_nowait(ledger_id) or bookie.image.flags(ledger_id)
            if flags is None or not flags.fenced:
                self.violated(f"{bookie.name} does not know after its start that ledger {ledger_id} is fenced")


def _knows(bookie: BookieWatch, opened: Bookie, ledger_id: int, entry_id: int) -> bool:
    if opened._storage.get_entry_nowait(ledger_id, entry_id) is not None:
        return True
    return bool(bookie.image.extents_of(ledger_id, entry_id))


class TailOrDamage(Invariant):
    """B3: a start cuts off a torn tail and nothing else: what was durable before is known after it, or it refuses."""

    id = "B3"

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        for ledger_id, entry_id in bookie.durable_before:
            if ledger_id in self.watch.ledgers and not _knows(bookie, opened, ledger_id, entry_id):
                self.violated(f"{bookie.name} cut entry {entry_id} of ledger {ledger_id} off, which was durable")


class ReadIsDurable(Invariant):
    """B9: what a bookie has read from its journal is durable when it serves, whatever a former life left in a cache."""

    id = "B9"

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        if bookie.is_excused:
            return
        for device, journal in zip(bookie.image.journals, opened.journals.all, strict=True):
            for file in journal.files.old:
                if device.tree.find(file.path) is not None and device.durable(file.path) != device.cached(file.path):
                    self.violated(f"{bookie.name} serves, and a power loss may change {file.path}, which it has read")


class Mark(Invariant):
    """B4: the journal's mark passes a record only when its entries are durable in a log, and in the index."""

    id = "B4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._checked: dict[tuple[str, int], int] = {}

    def on_mark_moved(self, bookie: BookieWatch) -> None:
        if bookie.is_excused:
            return
        for number in range(len(bookie.image.journals)):
            mark = bookie.image.mark(number)
            before = self._checked.get((bookie.name, number), 0)
            if mark > before:
                self._checked[bookie.name, number] = mark
                self._check(bookie, number, before, mark)

    def _check(self, bookie: BookieWatch, number: int, before: int, mark: int) -> None:
        image = bookie.image
        for (journal, _), view in image.views().items():
            if journal != number:
                continue
            for (ledger_id, entry_id), (sequence, _) in view.entries.items():
                if not before < sequence <= mark or ledger_id not in self.watch.ledgers:
                    continue
                if image.logged_entry(ledger_id, entry_id) is None:
                    self.violated(
                        f"the mark of {bookie.name} passed record {sequence} with entry {entry_id} of ledger "
                        f"{ledger_id}, which is not in the logs"
                    )


class Garbage(Invariant):
    """B6: nothing goes that the metadata assigns to this bookie; compaction moves an entry before it forgets it."""

    id = "B6"

    def on_index_write(self, bookie: BookieWatch, changes: Changes) -> None:
        for first, _ in changes.removed_ranges:
            if first[:1] == EXTENT:
                self._check_deleted(bookie, _LEDGER.unpack_from(first, 1)[0])
        removed = [key for key in changes.removed if key[:1] == EXTENT]
        if removed and not bookie.is_excused:
            self._check_moved(bookie, removed, changes)

    def _check_deleted(self, bookie: BookieWatch, ledger_id: int) -> None:
        known = self.watch.ledgers.get(ledger_id)
        if known is not None and any(bookie.bookie_id in fragment.ensemble for fragment in known.value.fragments):
            self.violated(f"{bookie.name} deletes ledger {ledger_id}, which the metadata assigns to it")

    def _check_moved(self, bookie: BookieWatch, removed: list[bytes], changes: Changes) -> None:
        new = [decode(key[1:], value) for key, value in changes.put if key[:1] == EXTENT]
        durable = [extent for extent in new if bookie.image.is_durable(extent)]
        index = bookie.image.index()
        for key in removed:
            if key not in index.values:
                continue
            old = decode(key[1:], index.values[key])
            lost = [entry_id for entry_id in old.ids if not _is_in(old.ledger_id, entry_id, durable)]
            if lost and old.ledger_id in self.watch.ledgers:
                self.violated(f"{bookie.name} forgets entries {lost} of ledger {old.ledger_id} before they are moved")

    def on_log_names_synced(self, bookie: BookieWatch) -> None:
        if bookie.is_excused:
            return
        there: dict[int, bool] = {}
        for extent in bookie.image.extents():
            log_id = extent.place.log_id
            if log_id not in there:
                there[log_id] = any(device.tree.find(log_path(log_id)) for device in bookie.image.directories)
            if not there[log_id] and extent.ledger_id in self.watch.ledgers:
                self.violated(f"{bookie.name} removed log {log_id}, which has entries of ledger {extent.ledger_id}")
                return

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:  # noqa: ARG002
        self.on_log_names_synced(bookie)

    def at_end(self) -> None:
        for bookie in self.watch.bookies.values():
            self.on_log_names_synced(bookie)


def _is_in(ledger_id: int, entry_id: int, extents: list[Extent]) -> bool:
    return any(extent.ledger_id == ledger_id and extent.holds(entry_id) for extent in extents)


# --- answers ----------------------------------------------------------------------------------------------------------

_GRACE_S: Final = 0.35
"""Until a process hears that its sync failed: the longest stall, and the longest sync."""


class SyncBeforeAnswer(Invariant):
    """B1: an add, a fence or an explicit LAC is answered when it is durable."""

    id = "B1"

    def on_add_answer(self, answer: AddAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or answer.deferred or bookie.is_excused or not self._is_alive(answer.ledger_id):
            return
        if bookie.image.entry(answer.ledger_id, answer.entry_id) is None:
            self.violated(f"{bookie.name} answered entry {answer.entry_id} of ledger {answer.ledger_id} undurable")

    def on_read_answer(self, answer: ReadAnswer) -> None:
        bookie = answer.bookie
        if not answer.fence or answer.code not in (Code.EOK, *_NO) or bookie.is_excused:
            return
        if not bookie.image.is_fenced(answer.ledger_id):
            self.violated(f"{bookie.name} answered a fence of ledger {answer.ledger_id} that is not durable")

    def on_lac_answer(self, answer: LacAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or bookie.is_excused or not self._is_alive(answer.ledger_id):
            return
        if not bookie.image.has_lac(answer.ledger_id, answer.lac):
            self.violated(f"{bookie.name} answered an explicit LAC of ledger {answer.ledger_id} undurable")

    def _is_alive(self, ledger_id: int) -> bool:
        """A deleted one may be dropped at any time."""
        return ledger_id in self.watch.ledgers


class BytesVerify(Invariant):
    """B5: what is served verifies, or the answer is an error; a "no" is never an error in disguise."""

    id = "B5"

    def on_read_answer(self, answer: ReadAnswer) -> None:
        if answer.code in _NO and not answer.fence and has_promised(self.watch, answer):
            self.violated(
                f"{answer.bookie.name} denied entry {answer.entry_id} of ledger {answer.ledger_id}, and had stored it"
            )
        ledger = self.watch.history.ledgers.get(answer.ledger_id)
        if ledger is None:
            return
        for step, body in enumerate(answer.bodies):
            try:
                if answer.entry_id < 0:
                    ledger.digest.open_last(answer.ledger_id, body)
                else:
                    ledger.digest.open(answer.ledger_id, answer.entry_id + step, body)
            except DigestMismatchError as error:
                self.violated(f"{answer.bookie.name} served bytes that do not verify: {error}")


class Identity(Invariant):
    """B7: a bookie that lost a disk, or its cookie, answers nothing until an operator has repaired it."""

    id = "B7"

    def on_any_answer(self, bookie: BookieWatch) -> None:
        if bookie.emptied:
            self.violated(f"{bookie.name} serves, though a disk of it was emptied, or its cookie deleted")
            bookie.emptied = False


class FailedSync(Invariant):
    """B8: after a failed sync of any of its disks, a bookie acknowledges nothing until it is started again."""

    id = "B8"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._before: dict[str, tuple[int, int]] = {}

    def on_add_answer(self, answer: AddAnswer) -> None:
        if answer.code != Code.EOK:
            return
        bookie = answer.bookie
        failures = sum(device.faults.counts[Fault.SYNC_ERROR] for device in bookie.image.devices)
        process, known = self._before.get(bookie.name, (-1, 0))
        if process != bookie.machine.processes:  # What a start met, it did not survive.
            self._before[bookie.name] = bookie.machine.processes, failures
            bookie.sync_failed_s = None
        elif failures > known:
            self._before[bookie.name] = process, failures
            bookie.sync_failed_s = bookie.sync_failed_s or self.watch.now
        if bookie.sync_failed_s is not None and answer.received_s > bookie.sync_failed_s + _GRACE_S:
            self.violated(f"{bookie.name} acknowledges adds, though a sync of its disks failed")
            bookie.sync_failed_s = None


# --- what must end ----------------------------------------------------------------------------------------------------

_CONNECTS_PER_S: Final = 60  # From one client to one bookie. The shortest pause between two tries is 5 ms, and doubled.
_REQUESTS_PER_S: Final = 100  # Of metadata, for each pair of client and bookie.
_CHANGE_PAUSE_S: Final = 0.025  # The shortest pause of a writer between two changes, of which the first was in vain.


class EnsembleChangesAreLimited(Invariant):
    """V4: a writer that chases dead bookies gives up, and no client tries anything again without a pause.

    In vain:   changes of a ledger between which no bookie took an entry of it. Every member of the ensemble may fail
               by itself, and is replaced at once; but who replaces those, and takes nothing either, is replaced after
               a pause. So there are E changes, and then as many as there are pauses in the time that they took.
    """

    id = "V4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._changes: dict[int, int] = {}
        self._in_vain: dict[int, list[float]] = {}

    def on_add_answer(self, answer: AddAnswer) -> None:
        if answer.code == Code.EOK:
            self._in_vain.pop(answer.ledger_id, None)

    def on_ledger_change(self, change: LedgerChange) -> None:
        before, after = change.before, change.after
        if before is None or after is None or after.value.state is not LedgerState.OPEN or is_healer(change.by):
            return
        self.watch.counters["ensemble changes"] += 1
        count = self._changes[change.ledger_id] = self._changes.get(change.ledger_id, 0) + 1
        limit = self.watch.options.client_config().ledger.ensemble_changes_max  # The window outlasts every run.
        if count > limit:
            self.violated(f"the bookies of ledger {change.ledger_id} were replaced {count} times; the limit is {limit}")
        in_vain = self._in_vain.setdefault(change.ledger_id, [])
        in_vain.append(self.watch.now)
        took_s = self.watch.now - in_vain[0]
        if len(in_vain) > after.value.ensemble_size + took_s / _CHANGE_PAUSE_S:
            self.violated(
                f"the bookies of ledger {change.ledger_id} were replaced {len(in_vain)} times within {took_s:.3f} s, "
                "and no bookie took an entry in between: a client tries again without a pause"
            )

    def at_end(self) -> None:
        """Nor does any client try again and again without a pause."""
        watch, options = self.watch, self.watch.options
        counters = watch.world.network.counters
        connections = counters.connections + counters.refused - watch.counters["hostile connections"]
        pairs = (options.clients + options.healers + 1) * options.bookies
        for what, count, most in (
            ("connections", connections, pairs * _CONNECTS_PER_S),
            ("metadata requests", watch.counters["metadata requests"], (pairs + 1) * _REQUESTS_PER_S),
        ):
            if count > most * watch.now:
                self.violated(f"{count} {what} in {watch.now:.1f} s: a client tries again without a pause")


class NothingOutlives(Invariant):
    """V5: a client or a bookie that was closed has no task and no timer left.

    The cluster looks at connections (sim/ledgers/cluster.py).
    """

    id = "V5"

    def on_client_closed(self, name: str) -> None:
        self._check(name)

    def on_bookie_closed(self, bookie: BookieWatch) -> None:
        self._check(bookie.name)

    def _check(self, name: str) -> None:
        """Called by the process itself, as the last thing it does."""
        loop = self.watch.world.loop
        process = loop.current()
        left = [task.get_name() for task in loop.tasks_of(process) if not task.get_name().startswith("main of")]
        if left:
            self.violated(f"{name} was closed, and its tasks {left} go on")
        timers = [
            repr(handle.callback)
            for _, _, handle in loop._timers
            if handle.process is process and not handle.cancelled() and _is_product(_module(handle.callback))
        ]
        if timers:
            self.violated(f"{name} was closed, and its timers go on: {timers}")


def _is_product(module: str) -> bool:
    return module.startswith("magnetar.") and not module.startswith("magnetar.sim")


def _module(callback: object) -> str:
    return str(getattr(getattr(callback, "__func__", callback), "__module__", ""))


# --- memory -----------------------------------------------------------------------------------------------------------

_EVERY: Final = 24  # Answers between two looks at everything.
_CONTEXTS_MAX: Final = Flag.ALL + 1
_HOLDERS: Final = (list, tuple, types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


class MemoryIsBounded(Invariant):
    """M1: what a bookie holds is what it counts, and within what its limits allow."""

    id = "M1"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._open: dict[str, Bookie] = {}
        self._answers = 0

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        self._open[bookie.name] = opened

    def on_bookie_closed(self, bookie: BookieWatch) -> None:
        self._open.pop(bookie.name, None)

    def on_any_answer(self, bookie: BookieWatch) -> None:
        opened = self._open.get(bookie.name)
        if opened is None:
            return
        self._answers += 1
        if opened.receiving.kept_bytes > opened.receiving.bytes_max or self._answers % _EVERY == 0:
            for what in receiving_complaints(opened.receiving, opened._requests.connections):
                self.violated(f"{bookie.name}: {what}")
        if self._answers % _EVERY == 0:
            for what in complaints(opened):
                self.violated(f"{bookie.name}: {what}")


def complaints(bookie: Bookie) -> Iterable[str]:
    """About everything but what connections have received."""
    connections = list(bookie._requests.connections)
    yield from _answer_complaints(bookie, connections)
    yield from _cache_complaints(bookie)
    yield from _context_complaints(bookie)


def receiving_complaints(memory: ReceiveMemory, connections: Iterable[Any]) -> Iterable[str]:
    """Of connections that have a `Received`, of bookies or brokers."""
    kept = []
    for connection in connections:
        received = connection._inbox
        is_handled_now = received.data is memory.shared
        kept.append(received._kept_bytes if is_handled_now else len(received.data))
    total = sum(kept)
    if total != memory.kept_bytes:
        yield f"connections keep {total} bytes that they received, and {memory.kept_bytes} are counted"
    if total > memory.bytes_max:
        others = sorted(kept)[:-1]  # One may always finish its frame; each may keep a little, and one a whole read.
        if sum(max(0, size - SMALL_BYTES) for size in others) > memory.bytes_max + len(memory.shared):
            yield f"connections keep {total} bytes that they received; {memory.bytes_max} are allowed"


# --- the memory of answers --------------------------------------------------------------------------------------------


def _answer_complaints(bookie: Bookie, connections: Iterable[Connection]) -> Iterable[str]:
    cached = _cached(bookie)
    current = asyncio.current_task()
    for connection in connections:
        size = sum(map(len, connection._unsent))
        if size != connection._unsent_bytes:
            yield f"{size} bytes of answers wait on a connection, and {connection._unsent_bytes} are counted"
        yield from _keeping_complaints(_views(connection._unsent), cached, "answers that wait")
    for task in bookie.reads._tasks:
        if task is not current:
            yield from _keeping_complaints(_views(task.get_coro()), cached, "answers that are made")


def _keeping_complaints(views: list[memoryview], cached: dict[int, None], what: str) -> Iterable[str]:
    """Views of chunks that a cache holds cost nothing now."""
    views = [view for view in views if id(view.obj) not in cached]
    used = sum(map(len, views))
    kept = sum({id(view.obj): len(view.obj) for view in views}.values())  # type: ignore[arg-type]
    if kept > KEPT_PER_BYTE * used:
        yield f"{what}, of {used} bytes, keep {kept} bytes of chunks in memory"


def _views(root: object) -> list[memoryview]:
    """Those that are reachable from here through containers and through the frames of coroutines."""
    found: list[memoryview] = []
    seen: dict[int, None] = {}
    stack = [root]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = None
        if type(current) is memoryview:
            found.append(current)
        elif isinstance(current, _HOLDERS):
            stack += gc.get_referents(current)
    return found


def _cached(bookie: Bookie) -> dict[int, None]:
    """The chunks of all caches, by `id`."""
    storage = bookie._storage
    chunks: dict[int, None] = {id(chunk.obj): None for cache in storage._caches() for chunk in cache._chunks}
    chunks.update({id(run.data): None for run in storage._reads.cache._chunks.values()})
    return chunks


# --- tables -----------------------------------------------------------------------------------------------------------


def _cache_complaints(bookie: Bookie) -> Iterable[str]:
    storage = bookie._storage
    for cache in storage._caches():
        size = sum(map(len, cache._chunks)) + len(cache._offsets) * ENTRY_OVERHEAD_BYTES
        if size != cache.bytes:
            yield f"a write cache has {size} bytes, and counts {cache.bytes}"
    read = storage._reads.cache
    size = sum(len(run.data) + len(run.entry_ids) * ENTRY_OVERHEAD_BYTES for run in read._chunks.values())
    if size != read.bytes:
        yield f"the read cache has {size} bytes, and counts {read.bytes}"
    if size > read._bytes_max:
        yield f"the read cache has {size} bytes; {read._bytes_max} are allowed"


def _context_complaints(bookie: Bookie) -> Iterable[str]:
    table = bookie.table
    counts = [len(ledger.contexts) for ledger in table._ledgers.values()]
    if sum(counts) != len(table._contexts):
        yield f"ledgers have {sum(counts)} contexts, and the table has {len(table._contexts)}"
    if max(counts, default=0) > _CONTEXTS_MAX:
        yield f"a ledger has {max(counts)} contexts; {_CONTEXTS_MAX} are allowed"


# --- all of them ------------------------------------------------------------------------------------------------------


ALL: tuple[type[Invariant], ...] = (
    NoTruncation,
    AckIsDurable,
    AckedIsReadable,
    ClosedIsReplicated,
    OneBody,
    AcksInOrder,
    LacTowardsReaders,
    FenceIsForEver,
    NoIsAPromise,
    LedgerMetadataChanges,
    RecoveryNeverGuesses,
    SyncBeforeAnswer,
    Replay,
    TailOrDamage,
    ReadIsDurable,
    Mark,
    BytesVerify,
    Garbage,
    Identity,
    FailedSync,
    EnsembleChangesAreLimited,
    NothingOutlives,
    MemoryIsBounded,
)
