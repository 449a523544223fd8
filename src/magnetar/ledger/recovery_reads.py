"""What recovery asks bookies: to be fenced, and which entries they have.

Invariant: every request here fences, so whoever says "no such entry" will not store it for the old writer later. Only
           explicit answers count (coverage.py decides).
Undecided: asked again, with longer and longer pauses, until no time is left for another try: a bookie that restarts,
           or a connection that is full just now, is no reason to give a ledger up.
Ensemble:  the last one as it was when recovery began. A bookie that recovery itself put in the place of another never
           counts: it has what we wrote, which proves nothing.
Window:    one entry at first, one more for every two that are found, up to `ledger.recovery_reads_in_flight_max`, and
           not more than is expected to fit into `ledger.add_bytes_in_flight_max`: most ledgers end right behind the
           LAC, those that do not deserve the speed, and reading far past the end costs as much as reading.
Read next: recovery.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from typing import Final, NamedTuple

from magnetar.errors import LedgerRecoveryError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.answers import Answer, ask, describe
from magnetar.ledger.backoff import Backoff
from magnetar.ledger.keys import LedgerKeys
from magnetar.ledger.lac import sizes_of
from magnetar.ledger.parts import Parts
from magnetar.ledger.survey import survey
from magnetar.metadata.bookkeeper.ledger_metadata import NO_ENTRY, LedgerMetadata
from magnetar.quorum.coverage import Meaning, Recovered, RecoveryRead, meaning_of
from magnetar.quorum.write_sets import write_set
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.messages import V3, ReadEntry
from magnetar.wire.bookkeeper.packet import LAST_ENTRY

log = logging.getLogger(__name__)

_PAUSE_LONGEST_S: Final = 2.0  # Beside a recovery's patience, short; for a bookie that is asked in vain, long.


class Fenced(NamedTuple):
    lac: int
    """The highest that any bookie told of."""
    lengths: dict[int, int]
    """Of the ledger up to and including these entries: the last one of each bookie."""


class _Patience:
    """Pauses between tries, up to the time when another one could not be finished: so whoever gives up knows why."""

    def __init__(self, parts: Parts, until: float) -> None:
        self._backoff = Backoff(parts.entropy.random, longest_s=_PAUSE_LONGEST_S)
        self._last_try = until - parts.config.read_timeout_ms / 1000
        self._loop = asyncio.get_running_loop()

    async def pause(self) -> bool:
        """False: no time is left."""
        pause_s = self._backoff.next_s()
        if self._loop.time() + pause_s > self._last_try:
            return False
        await asyncio.sleep(pause_s)
        return True


async def fence(metadata: LedgerMetadata, keys: LedgerKeys, parts: Parts, until: float) -> Fenced:
    """Returns when the old writer can no longer get an entry acknowledged. LedgerRecoveryError if it may still.

    `until`: when it has to be done, in the loop's time.
    """
    patience = _Patience(parts, until)
    request = _fencing_read(keys, LAST_ENTRY)
    timeout_s = parts.config.read_timeout_ms / 1000
    ensemble = metadata.fragments[-1].ensemble

    async def attempt(bookie: BookieId) -> Answer:
        return await ask(parts.bookies, bookie, keys, request, timeout_s)

    while True:
        found = await survey(sizes_of(metadata), ensemble, attempt, _is_fenced)
        if found.is_covered:
            entries = [entry for answer in found.answers.values() for entry in answer.entries]
            lac = max((entry.lac for entry in entries), default=int(NO_ENTRY))
            return Fenced(lac, {entry.entry_id: entry.length for entry in entries})
        if not await patience.pause():
            raise _undecided(keys, "too few bookies could be fenced", found.answers)


def _is_fenced(answer: Answer) -> bool:
    """A bookie fences before it looks for the entry, so a damaged one is no worse than none: it only hides a LAC."""
    return answer.code is not None and meaning_of(answer.code) is not Meaning.NOTHING


class RecoveryReads:
    """The entries from the first one on, in order, up to the first that is certainly missing."""

    def __init__(self, metadata: LedgerMetadata, first: EntryId, keys: LedgerKeys, parts: Parts, until: float) -> None:
        """`until`: when it has to be done, in the loop's time."""
        self._metadata = metadata
        self._ensemble = metadata.fragments[-1].ensemble
        self._sizes = sizes_of(metadata)
        self._keys = keys
        self._parts = parts
        self._until = until
        self._next = int(first)
        self._window = 1
        self._found = 0
        self._largest = 1
        self._reading: deque[asyncio.Task[Entry | None]] = deque()

    async def next(self) -> Entry | None:
        """None: the ledger ends before this entry, and nothing behind it counts. LedgerRecoveryError: nobody knows."""
        loop = asyncio.get_running_loop()
        while len(self._reading) < self._window:
            name = f"recovery of ledger {self._keys.ledger_id}: entry {self._next}"
            self._reading.append(loop.create_task(self._read(self._next), name=name))
            self._next += 1
        entry = await self._reading[0]
        self._reading.popleft()
        if entry is not None:
            self._widen(entry)
        return entry

    def _widen(self, found: Entry) -> None:
        config = self._parts.config
        self._largest = max(self._largest, len(found.payload))
        fitting = config.add_bytes_in_flight_max // (self._largest * self._sizes.write)  # Everybody may send a copy.
        self._found += 1
        self._window = max(1, min(1 + self._found // 2, config.recovery_reads_in_flight_max, fitting))

    async def aclose(self) -> None:
        tasks = list(self._reading)
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    async def _read(self, entry_id: int) -> Entry | None:
        patience = _Patience(self._parts, self._until)
        while True:
            answers: dict[BookieId, Answer] = {}
            decision = await self._decide(entry_id, answers)
            if decision is Recovered.FOUND:
                return next(answer.entries[0] for answer in answers.values() if answer.entries)
            if decision is Recovered.ABSENT:
                return None
            if not await patience.pause():
                raise _undecided(self._keys, f"nobody can say whether it has entry {entry_id}", answers)

    async def _decide(self, entry_id: int, answers: dict[BookieId, Answer]) -> Recovered:
        """Asks the whole write set at once, and stops as soon as it is decided."""
        read = RecoveryRead(self._sizes, entry_id)
        request = _fencing_read(self._keys, entry_id)
        timeout_s = self._parts.config.read_timeout_ms / 1000
        asked = {
            asyncio.ensure_future(
                ask(self._parts.bookies, self._ensemble[position], self._keys, request, timeout_s)
            ): position
            for position in write_set(self._sizes.ensemble, self._sizes.write, entry_id)
        }
        try:
            while read.decision is Recovered.PENDING:
                await asyncio.wait(asked, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in asked if task.done()]:
                    position = asked.pop(task)
                    answer = answers[self._ensemble[position]] = task.result()
                    read.on_answer(position, answer.meaning)
            return read.decision
        finally:
            for task in asked:
                task.cancel()
            await asyncio.gather(*asked, return_exceptions=True)


def _fencing_read(keys: LedgerKeys, entry_id: int) -> ReadEntry:
    return ReadEntry(keys.ledger_id, entry_id, fence=True, master_key=keys.master_key, high_priority=True, version=V3)


def _undecided(keys: LedgerKeys, why: str, answers: dict[BookieId, Answer]) -> LedgerRecoveryError:
    return LedgerRecoveryError(
        f"ledger {keys.ledger_id} was not recovered: {why} ({describe(answers)}). It is not closed, and its entries "
        "are as they were: try again when these bookies are back"
    )
