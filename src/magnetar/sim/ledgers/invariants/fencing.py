"""Taking a ledger from its writer: L8, L9, L11."""

from __future__ import annotations

from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.quorum.write_sets import write_set
from magnetar.sim.ledgers.watch import AddAnswer, Invariant, LedgerChange, ReadAnswer, Watch
from magnetar.wire.bookkeeper.codes import Code

_NO = (Code.ENOENTRY, Code.ENOLEDGER)


class FenceIsForEver(Invariant):
    """L8: behind the answer to a fence, no plain add of the ledger succeeds at that bookie, whatever happens to it."""

    id = "L8"

    def on_add_answer(self, answer: AddAnswer) -> None:
        bookie = answer.bookie
        if answer.code != Code.EOK or answer.recovery or bookie.is_excused:
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
        if answer.code == Code.EOK and not answer.recovery and key in bookie.denied and not bookie.is_excused:
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
    if not stored or answer.ledger_id not in watch.ledgers or bookie.is_excused:
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
