"""The fence: takes a ledger from its writer, and learns how far it may reach.

How:       every bookie of the last ensemble reads its last entry, and fences the ledger first. It is done when no write
           set has Qa bookies that did not answer (coverage.py): no entry of the old writer can be acknowledged then.
Undecided: asked again, with longer and longer pauses, until no time is left for another try: a bookie that restarts,
           or a connection that is full just now, is no reason to give a ledger up.
Learned:   the highest LAC, and the last entry of each bookie that answered: where to look for what is behind the LAC.
Read next: recovery.py, fencing_reads.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from magnetar.ids import BookieId
from magnetar.ledger.answers import Answer
from magnetar.ledger.fencing_reads import AnswerListener, FencingReads, undecided
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.lac import sizes_of
from magnetar.ledger.parts import Parts
from magnetar.ledger.patience import Patience
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.coverage import Coverage, EnsembleCoverage, Meaning, meaning_of
from magnetar.quorum.sizes import QuorumSizes
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.packet import LAST_ENTRY

_LAST: Final = (LAST_ENTRY,)


class Fenced(NamedTuple):
    last_entries: Mapping[int, Entry]
    """By position in the ensemble, of those that answered with one."""
    took_s: float
    """Until enough had answered."""

    @property
    def lac(self) -> int:
        """The highest that any bookie told of."""
        return max((entry.lac for entry in self.last_entries.values()), default=int(NO_ENTRY))

    def length_at(self, entry_id: int) -> int | None:
        """Of the ledger up to and including this entry, if it is the last one of some bookie."""
        for entry in self.last_entries.values():
            if entry.entry_id == entry_id:
                return entry.length
        return None


async def fence(metadata: LedgerMetadata, keys: LedgerKeys, parts: Parts, until: float) -> Fenced:
    """Returns when the old writer can no longer get an entry acknowledged. LedgerRecoveryError if it may still.

    `until`: when it has to be done, in the loop's time.
    """
    loop = asyncio.get_running_loop()
    patience: Patience | None = None
    sizes, ensemble = sizes_of(metadata), metadata.fragments[-1].ensemble
    while True:
        began = loop.time()
        round_ = _Round(sizes, ensemble)
        asking = FencingReads(ensemble, keys, parts, round_)
        try:
            for position in range(len(ensemble)):
                asking.ask(position, _LAST)
            await round_.decided
        finally:
            await asking.aclose()
        if round_.coverage.state is Coverage.COVERED:
            return Fenced(round_.last_entries, loop.time() - began)
        patience = patience or Patience(parts, until)
        pause_s = patience.next_s()
        if pause_s is None:
            raise undecided(keys, "too few bookies could be fenced", round_.answers)
        await asyncio.sleep(pause_s)


class _Round(AnswerListener):
    """Everybody was asked once; this is what they say, until it is enough or cannot be any more."""

    def __init__(self, sizes: QuorumSizes, ensemble: Sequence[BookieId]) -> None:
        self.coverage = EnsembleCoverage(sizes)
        self.answers: dict[BookieId, Answer] = {}
        self.last_entries: dict[int, Entry] = {}
        self.decided: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._ensemble = ensemble

    def on_answers(self, position: int, answers: Sequence[tuple[int, Answer]]) -> None:
        if self.decided.done():
            return
        for _, answer in answers:
            self.answers[self._ensemble[position]] = answer
            if answer.entries:
                self.last_entries[position] = answer.entries[0]
            (self.coverage.on_answer if _is_fenced(answer) else self.coverage.on_failure)(position)
        if self.coverage.state is not Coverage.PENDING:
            self.decided.set_result(None)

    def on_asking_failed(self, error: Exception) -> None:
        if not self.decided.done():
            self.decided.set_exception(error)


def _is_fenced(answer: Answer) -> bool:
    """A bookie fences before it looks for the entry, so a damaged one is no worse than none: it only hides a LAC."""
    return answer.code is not None and meaning_of(answer.code) is not Meaning.NOTHING
