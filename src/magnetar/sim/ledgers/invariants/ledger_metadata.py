"""L10: how a ledger's metadata may change, and who may change it."""

from __future__ import annotations

from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.sim.ledgers.watch import Invariant, LedgerChange

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
