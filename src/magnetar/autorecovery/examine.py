"""Examines the copies of a fragment: each bookie is asked for its own.

Order:     bookies that are not registered, or are being decommissioned, are not asked: their position needs another
           bookie anyway. The others are asked for the first and the last entry that they hold, or for every entry if
           the caller wants that of this bookie.
Failure:   "too many requests" and silence say nothing about an entry. Such a bookie is asked again, for fewer entries
           at a time, and counts as silent after a few tries without any answer.
Limits:    one run of entries of one bookie at a time; the runs fit into the configured size, as far as the size of an
           entry is known.
Read next: fragments.py (what follows from it)
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import Final

from magnetar.autorecovery.fragments import Defect, Fault, FragmentRange
from magnetar.autorecovery.rate import ByteRate
from magnetar.ids import BookieId
from magnetar.ledger.channels.answers import Answer, Finding
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.ledger.reading.replicas import read_replicas
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import gather_bounded

ENTRY_BYTES_GUESSED: Final = 4096  # For a ledger that is not closed: its metadata has no length yet.
RUN_ENTRIES_MAX: Final = 1_000  # Below what any bookie takes from one reader at once.
_TRIES: Final = 4  # In a row without any answer.
_SHRINK: Final = 4
_PAUSE_FIRST_S: Final = 0.1
_PAUSE_LONGEST_S: Final = 1.0
_MISSING_MAX: Final = 100_000  # Entries of one position that are kept in memory; the rest is found by the next try.
_FAULTY = (Finding.ABSENT, Finding.DAMAGED, Finding.LIMBO)


def entry_bytes(metadata: LedgerMetadata) -> int:
    """Returns the size of one entry, as far as it is known before it is read."""
    entries = metadata.last_entry_id + 1
    return max(1, metadata.length // entries) if metadata.is_closed and entries > 0 else ENTRY_BYTES_GUESSED


def requests_share(context: LedgerContext, works: int) -> int:
    """Returns how many requests one of this many pieces of work may have in flight at one bookie."""
    return max(1, context.config.requests_in_flight_max // (works + 1))


class Examiner:
    """Examines fragments of one ledger."""

    def __init__(
        self,
        keys: LedgerKeys,
        context: LedgerContext,
        rate: ByteRate,
        *,
        is_serving: Callable[[BookieId], bool],
        is_draining: Callable[[BookieId], bool],
        run_bytes_max: int,
        run_entries_max: int,
        entry_bytes: int,
    ) -> None:
        self._keys = keys
        self._context = context
        self._rate = rate
        self._is_serving = is_serving
        self._is_draining = is_draining
        self._entry_bytes = entry_bytes
        self._run_entries = max(1, min(RUN_ENTRIES_MAX, run_entries_max, run_bytes_max // entry_bytes))
        self.entries_verified = 0

    async def defects(self, fragment: FragmentRange, every_entry_of: Callable[[BookieId], bool]) -> list[Defect]:
        """Returns what is wrong, by position; nothing if all copies are well."""
        works = [
            partial(self._defect, fragment, position, every_entry_of)
            for position in fragment.positions
            if fragment.held(position) is not None
        ]
        found = await gather_bounded(works, len(works))
        return [defect for defect in found if defect is not None]

    async def _defect(
        self, fragment: FragmentRange, position: int, every_entry_of: Callable[[BookieId], bool]
    ) -> Defect | None:
        bookie = fragment.ensemble[position]
        if not self._is_serving(bookie):
            return Defect(position, Fault.LOST)
        if self._is_draining(bookie):
            return Defect(position, Fault.DRAINING)
        missing: list[int] = []
        for run in self._runs(fragment, position, every_entry=every_entry_of(bookie)):
            answers = await self._ask(bookie, run)
            if (silence := _silence(answers)) is not None:
                return Defect(position, Fault.SILENT, why=silence)
            missing += [entry_id for entry_id, answer in answers.items() if answer.finding in _FAULTY]
            if len(missing) >= _MISSING_MAX:
                break
        if not missing:
            return None
        if not every_entry_of(bookie):  # One of the ends is missing: all others have to be looked at.
            return await self._defect(fragment, position, lambda _: True)
        return Defect(position, Fault.MISSING, tuple(sorted(missing)))

    def _runs(self, fragment: FragmentRange, position: int, *, every_entry: bool) -> Iterator[Sequence[int]]:
        if not every_entry:
            held = fragment.held(position)
            assert held is not None
            yield list(dict.fromkeys((held.first, held.last)))
            return
        run: list[int] = []
        for entry_id in fragment.each_held(position):
            run.append(entry_id)
            if len(run) == self._run_entries:
                yield run
                run = []
        if run:
            yield run

    async def _ask(self, bookie: BookieId, entry_ids: Sequence[int]) -> dict[int, Answer]:
        await self._rate.take(len(entry_ids) * self._entry_bytes)
        answers = await ask_patiently(self._context, bookie, self._keys, entry_ids)
        self.entries_verified += sum(answer.finding is Finding.PRESENT for answer in answers.values())
        return answers


async def ask_patiently(
    context: LedgerContext, bookie: BookieId, keys: LedgerKeys, entry_ids: Sequence[int], *, tries_max: int = _TRIES
) -> dict[int, Answer]:
    """Asks again for what is not answered, in ever smaller runs, as long as the bookie answers anything."""
    backoff = Backoff(context.entropy.random, _PAUSE_FIRST_S, _PAUSE_LONGEST_S)
    answers: dict[int, Answer] = {}
    left, size, tries = list(entry_ids), len(entry_ids), tries_max
    while True:
        asked = len(left)
        left = await _ask_once(context, bookie, keys, left, size, answers)
        tries = tries_max if len(left) < asked else tries - 1
        if not left or tries <= 0:
            return answers
        size = max(1, size // _SHRINK)
        await asyncio.sleep(backoff.next_s())


async def _ask_once(
    context: LedgerContext,
    bookie: BookieId,
    keys: LedgerKeys,
    entry_ids: Sequence[int],
    size: int,
    answers: dict[int, Answer],
) -> list[int]:
    """Returns the entries without an answer. A run of which nothing is answered is the last one."""
    timeout_s = context.config.read_timeout_ms / 1000
    for at in range(0, len(entry_ids), size):
        run = entry_ids[at : at + size]
        answers |= await read_replicas(context.bookies, bookie, keys, run, timeout_s=timeout_s)
        if all(_is_silent(answers[entry_id]) for entry_id in run):
            for entry_id in entry_ids[at + size :]:
                answers.setdefault(entry_id, answers[run[0]])
            break
    return [entry_id for entry_id in entry_ids if _is_silent(answers[entry_id])]


def _is_silent(answer: Answer) -> bool:
    return answer.finding in (Finding.UNREACHABLE, Finding.REFUSED)


def _silence(answers: dict[int, Answer]) -> str | None:
    return next((str(answer) for answer in answers.values() if _is_silent(answer)), None)
