"""The entries after the LAC, as recovery reads them: each is found, certainly missing, or undecided.

Invariant: Every request here fences, so a bookie that answers "no such entry" will not store it for the old writer
           later. Only explicit answers count (quorum/coverage.py decides), and only those of the last ensemble as it
           was when recovery began: a bookie that recovery itself put there has what we wrote, which proves nothing.
Order:     One copy is enough to keep an entry. If the fence reported a last entry after this one, the bookie with that
           last entry is asked first; the others of the write set are asked if it lacks the entry, fails, or takes
           several times as long as the fence. An entry beyond every report is asked of the whole write set at once,
           since only several bookies can prove that it is missing.
Failure:   An undecided entry is asked for again, with growing pauses, until no time is left for another try.
Limits:    The window reaches one entry past the last one that the fence reported; from there on it has one entry, and
           one more for every two that are found. It has at most `ledger.recovery_reads_in_flight_max`, and what is
           expected to fit into `ledger.add_bytes_in_flight_max`. Reading far past the end costs as much as reading.
Read next: fence.py, recovery.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Sequence
from typing import Final

from magnetar.errors import LedgerRecoveryError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, RetryDeadline
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.reading.lac import sizes_of
from magnetar.ledger.recovery.fence import AnswerListener, Fenced, FencingReads, undecided
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.quorum.coverage import Recovered, RecoveryRead
from magnetar.quorum.sizes import write_sets
from magnetar.wire.bookkeeper.digests import Entry

_FENCES_OF_PATIENCE: Final = 4  # A bookie is slow if it takes this many times as long as the fence did.
_NOTHING_KNOWN: Final = Fenced({}, 0.0)


class _Reading:
    """Is one entry, until it is decided."""

    __slots__ = ("answers", "asked_at", "entry", "entry_id", "error", "patience", "read", "unasked")

    def __init__(self, entry_id: int, read: RecoveryRead, asked_at: float) -> None:
        self.entry_id = entry_id
        self.read = read
        self.asked_at = asked_at
        self.unasked: Sequence[int] = ()
        """Positions of the write set that are not asked while another one is expected to have the entry."""
        self.answers: dict[BookieId, Answer] = {}
        self.entry: Entry | None = None
        self.error: LedgerRecoveryError | None = None
        self.patience: RetryDeadline | None = None

    @property
    def is_over(self) -> bool:
        return self.read.decision in (Recovered.FOUND, Recovered.ABSENT) or self.error is not None


class RecoveryReads(AnswerListener):
    """Reads the entries from the first one on, in order, up to the first that is certainly missing."""

    def __init__(
        self,
        metadata: LedgerMetadata,
        first: EntryId,
        keys: LedgerKeys,
        context: LedgerContext,
        until: float,
        fenced: Fenced = _NOTHING_KNOWN,
    ) -> None:
        """`until`: the deadline, in the loop's time. `fenced`: the result of the fence, if it is known."""
        self._sizes = sizes_of(metadata)
        self._write_sets = write_sets(self._sizes.ensemble, self._sizes.write)
        self._keys = keys
        self._context = context
        self._until = until
        self._loop = asyncio.get_running_loop()
        self._asking = FencingReads(metadata.fragments[-1].ensemble, keys, context, self)
        self._head = int(first)
        self._next = int(first)
        self._known_last = {position: entry.entry_id for position, entry in fenced.last_entries.items()}
        self._known_end = max(self._known_last.values(), default=-1)
        self._found_beyond = 0
        self._largest = max(map(_expected_bytes, fenced.last_entries.values()), default=1)
        self._reading: dict[int, _Reading] = {}
        self._failure: Exception | None = None
        self._moved: asyncio.Future[None] | None = None
        config = context.config
        slow_ms = min(
            config.speculative_read_max_ms,
            max(config.speculative_read_min_ms, fenced.took_s * 1000 * _FENCES_OF_PATIENCE),
        )
        self._slow_s = slow_ms / 1000
        self._slow_timer: asyncio.TimerHandle | None = None
        self._pauses: dict[int, asyncio.TimerHandle] = {}

    async def next(self) -> Entry | None:
        """Returns None if the ledger ends before this entry. Raises LedgerRecoveryError if that is undecided."""
        self._begin_more()
        reading = self._reading[self._head]
        while not reading.is_over and self._failure is None:
            self._moved = self._loop.create_future()
            await self._moved
        if self._failure is not None:
            raise self._failure
        if reading.error is not None:
            raise reading.error
        del self._reading[self._head]
        self._head += 1
        if reading.entry is not None:
            self._widen(reading.entry)
        return reading.entry

    def _widen(self, found: Entry) -> None:
        self._largest = max(self._largest, len(found.payload))
        if found.entry_id > self._known_end:
            self._found_beyond += 1

    def _window_end(self) -> int:
        config = self._context.config
        fitting = config.add_bytes_in_flight_max // (self._largest * self._sizes.write)  # Every bookie may send a copy.
        most = max(1, min(config.recovery_reads_in_flight_max, fitting))
        return min(max(self._head + 1, self._known_end + 2) + self._found_beyond // 2, self._head + most)

    def _begin_more(self) -> None:
        end = self._window_end()
        if self._next >= end:
            return
        now = self._loop.time()
        shares: dict[int, list[int]] = {}
        for entry_id in range(self._next, end):
            reading = self._reading[entry_id] = _Reading(entry_id, RecoveryRead(self._sizes, entry_id), now)
            for position in self._first_asked(reading):
                shares.setdefault(position, []).append(entry_id)
        self._next = end
        self._ask(shares)

    def _first_asked(self, reading: _Reading) -> Sequence[int]:
        """Returns the bookie that should have the entry, or all. The choice differs by ledger, so that the load is
        shared."""
        members = self._write_sets[reading.entry_id % self._sizes.ensemble]
        if reading.entry_id > self._known_end:
            return members
        holders = [position for position in members if self._known_last.get(position, -1) >= reading.entry_id]
        if not holders:
            return members
        ensemble_size, begin = self._sizes.ensemble, self._keys.ledger_id
        first = min(holders, key=lambda position: (position - begin) % ensemble_size)
        reading.unasked = [position for position in members if position != first]
        if reading.unasked and self._slow_timer is None:
            self._slow_timer = self._loop.call_later(self._slow_s, self._on_slow)
        return (first,)

    def _ask_others(self, readings: Iterable[_Reading]) -> None:
        shares: dict[int, list[int]] = {}
        for reading in readings:
            for position in reading.unasked:
                shares.setdefault(position, []).append(reading.entry_id)
            reading.unasked = ()
        self._ask(shares)

    def _ask(self, shares: dict[int, list[int]]) -> None:
        for position, entry_ids in shares.items():
            self._asking.ask(position, entry_ids)

    def _on_slow(self) -> None:
        """Asks other bookies for entries whose expected bookie is slow."""
        self._slow_timer = None
        now = self._loop.time()
        waiting = [reading for reading in self._reading.values() if reading.unasked and not reading.is_over]
        self._ask_others([reading for reading in waiting if now - reading.asked_at >= self._slow_s])
        later = [reading.asked_at for reading in waiting if reading.unasked]
        if later:
            self._slow_timer = self._loop.call_at(min(later) + self._slow_s, self._on_slow)

    def on_answers(self, position: int, answers: Sequence[tuple[int, Answer]]) -> None:
        undecided_yet = []
        for entry_id, answer in answers:
            reading = self._reading.get(entry_id)
            if reading is None or reading.is_over:  # The others were enough.
                continue
            self._decide(reading, position, answer)
            if reading.unasked and not reading.is_over:
                undecided_yet.append(reading)
        if undecided_yet:
            self._ask_others(undecided_yet)
        self._wake()

    def _decide(self, reading: _Reading, position: int, answer: Answer) -> None:
        reading.answers[self._asking.ensemble[position]] = answer
        decision = reading.read.on_answer(position, answer.meaning)
        if decision is Recovered.FOUND:
            reading.entry = answer.entries[0]
        elif decision is Recovered.UNKNOWN:
            self._pause(reading)

    def _pause(self, reading: _Reading) -> None:
        reading.patience = reading.patience or RetryDeadline(self._context, self._until)
        pause_s = reading.patience.next_pause_s()
        if pause_s is None:
            why = f"it is unknown whether it has entry {reading.entry_id}"
            reading.error = undecided(self._keys, why, reading.answers)
        else:
            self._pauses[reading.entry_id] = self._loop.call_later(pause_s, self._ask_again, reading)

    def _ask_again(self, reading: _Reading) -> None:
        """Asks all again. Every bookie has answered or is lost, so no answer to an earlier request can still come."""
        entry_id = reading.entry_id
        del self._pauses[entry_id]
        reading.read = RecoveryRead(self._sizes, entry_id)
        reading.answers = {}
        self._ask({position: [entry_id] for position in self._write_sets[entry_id % self._sizes.ensemble]})

    def on_asking_failed(self, error: Exception) -> None:
        self._failure = error
        self._wake()

    def _wake(self) -> None:
        if self._moved is not None and not self._moved.done():
            self._moved.set_result(None)

    async def aclose(self) -> None:
        for timer in self._pauses.values():
            timer.cancel()
        self._pauses.clear()
        if self._slow_timer is not None:
            self._slow_timer.cancel()
        self._reading.clear()
        await self._asking.aclose()


def _expected_bytes(last: Entry) -> int:
    """Returns the expected size of an entry, the average of those up to `last`, which carries their total length."""
    return max(1, len(last.payload), last.length // (last.entry_id + 1))
