"""What an acknowledgement means, at the moment it is given: L1, L2, L6, L7."""

from __future__ import annotations

from collections.abc import Sequence

from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.sim.ledgers.history import LedgerHistory
from magnetar.sim.ledgers.watch import BookieWatch, Invariant, LacAnswer, LedgerChange, Watch


class NoTruncation(Invariant):
    """L1: a ledger is closed behind all that was acknowledged, and nothing beyond its end ever is."""

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
        if known is not None:  # Else deleted: bookies may have dropped it.
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
    """L6: acknowledged one behind the other, each with its own token; none while an ensemble change is written."""

    id = "L6"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._changing: dict[tuple[int, str], int] = {}

    def on_acked(self, ledger: LedgerHistory, first: int, last: int, tokens: Sequence[int]) -> None:
        if first != ledger.acked + 1:
            self.violated(f"entry {first} of ledger {ledger.ledger_id} was acknowledged behind {ledger.acked}")
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
    """L7: nobody believes in a LAC beyond the writer's; a reader's never goes back, and bounds what it is given."""

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
