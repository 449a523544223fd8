"""What the ledger protocol promises: L1 to L11.

Acks:      what an acknowledgement means, at the moment it is given: L1, L2, L6, L7.
Content:   what is stored, and what a reader gets of it: L3, L4, L5.
Fencing:   taking a ledger from its writer: L8, L9, L11.
Metadata:  how it may change, and who may change it: L10.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final

from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.quorum.write_sets import write_set
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
from magnetar.wire.bookkeeper.codes import Code

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
        """Nor may a change of the ensemble leave acknowledged entries behind."""
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
        self,
        bookie: BookieWatch,
        ledger_id: int,
        entry_ids: Sequence[int],
        lacs: Sequence[int],
        *,
        recovery: bool,  # noqa: ARG002
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

    def on_read(
        self,
        ledger: LedgerHistory,
        reader: str,
        entry_id: int,
        payload: bytes,  # noqa: ARG002
        lac: int,
        *,
        sure: bool,  # noqa: ARG002
    ) -> None:
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

    def on_read(
        self,
        ledger: LedgerHistory,
        reader: str,
        entry_id: int,
        payload: bytes,
        lac: int,  # noqa: ARG002
        *,
        sure: bool,  # noqa: ARG002
    ) -> None:
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
