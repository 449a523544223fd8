"""Reads of entries: from the bookie of the write set that answers first, verified, in bounded pieces.

A call reads and holds one chunk, which is a batch from one bookie if every bookie has every entry (E = Qw), otherwise
one read per entry, sent as one run per bookie. A caller that wants more asks again after it. How far a ledger may be
read is checked in reader.py.

Order:     If E = Qw, one bookie is asked as long as it answers (sticky), so that its read-ahead is of use, and then the
           others. If E > Qw, the write set's own order applies. A bookie that was silent is last for a while. The next
           bookie is asked when all that were asked have failed, or were silent for the delay: a given percentile of
           recent reads, within bounds, and the upper bound until enough reads were seen. So a slow bookie costs that
           delay and not its time-out. The first good answer wins, and the other requests are cancelled.
Failure:   Entries that the first bookie does not deliver are read one by one from all the others. The read fails when
           none is left, and the error names each answer (ledger/channels/answers.py). Bookies that had too many
           requests are asked again, for as long as a read may take from then on (ledger/channels/answers.py).
Limits:    Every bookie is asked at most once in a read, and each request has its time-out, so a read takes at most the
           sum of those.
Read next: reader.py
"""

from __future__ import annotations

import asyncio
from bisect import bisect_right
from collections import deque
from collections.abc import Awaitable, Callable, Sequence
from typing import Final, NamedTuple

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import MagnetarError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, BusyRetries, Finding, ask, exchange, interpret, is_busy, unreadable
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.metadata import LedgerKeys
from magnetar.metadata.bookkeeper.ledger_metadata import INT64_MAX, LedgerMetadata
from magnetar.quorum.sizes import write_set
from magnetar.runtime.runtime import Entropy
from magnetar.wire.bookkeeper.codes import code_of_number
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.messages import V2, BatchRead, ReadEntry, ReadResponse

_SAMPLES_MAX: Final = 256
_SAMPLES_MIN: Final = 16
_REFRESH_EVERY: Final = 16


class SpeculationDelay:
    """How long to wait for one bookie before the next one is asked as well."""

    def __init__(self, *, percentile: int, min_s: float, max_s: float) -> None:
        assert 0 < percentile <= 100
        assert 0 <= min_s <= max_s
        self._percentile = percentile
        self._min_s = min_s
        self._max_s = max_s
        self._samples: deque[float] = deque(maxlen=_SAMPLES_MAX)
        self._since_refresh = 0
        self.delay_s = max_s

    def on_answer(self, seconds: float) -> None:
        """Records that the first answer to a read took this time."""
        self._samples.append(seconds)
        self._since_refresh += 1
        if self._since_refresh >= _REFRESH_EVERY and len(self._samples) >= _SAMPLES_MIN:
            self._since_refresh = 0
            ordered = sorted(self._samples)
            at = min(len(ordered) - 1, len(ordered) * self._percentile // 100)
            self.delay_s = min(self._max_s, max(self._min_s, ordered[at]))


class Outcome(NamedTuple):
    winner: Answer | None
    others: dict[BookieId, Answer]
    """Answers of bookies that did not have it, in the order in which they came."""
    silent: list[BookieId]
    """Bookies that had not answered when the read ended: slow, or worse."""


async def read_speculatively(
    order: Sequence[BookieId], attempt: Callable[[BookieId], Awaitable[Answer]], delay: SpeculationDelay
) -> Outcome:
    loop = asyncio.get_running_loop()
    began = loop.time()
    waiting = list(reversed(order))
    asked: dict[asyncio.Task[Answer], BookieId] = {}
    others: dict[BookieId, Answer] = {}
    try:
        while waiting or asked:
            if waiting:
                bookie = waiting.pop()
                asked[asyncio.ensure_future(attempt(bookie))] = bookie
            await asyncio.wait(asked, timeout=delay.delay_s if waiting else None, return_when=asyncio.FIRST_COMPLETED)
            winner = _take_answers(asked, others)
            if winner is not None:
                delay.on_answer(loop.time() - began)
                return Outcome(winner, others, list(asked.values()))
        return Outcome(None, others, [])
    finally:
        await _cancel(asked)


def _take_answers(asked: dict[asyncio.Task[Answer], BookieId], others: dict[BookieId, Answer]) -> Answer | None:
    for task in [task for task in asked if task.done()]:
        answer = task.result()
        if answer.finding is Finding.PRESENT:
            del asked[task]
            return answer
        others[asked.pop(task)] = answer
    return None


async def _cancel(asked: dict[asyncio.Task[Answer], BookieId]) -> None:
    for task in asked:
        task.cancel()
    if asked:
        await asyncio.gather(*asked, return_exceptions=True)


_AVOID_S: Final = 5.0  # How long a silent bookie is asked last: as long as a read may take by default.
_RUN_ENTRIES_FIRST: Final = 16  # The entries of a run before the size of this ledger's entries is known.


class EntryReads:
    """Reads entries of one ledger. The calls of one reader share what is known of its bookies."""

    def __init__(self, keys: LedgerKeys, bookies: Bookies, config: LedgerConfig, entropy: Entropy) -> None:
        self._keys = keys
        self._bookies = bookies
        self._config = config
        self._timeout_s = config.read_timeout_ms / 1000
        self._random = entropy.random
        self._sticky = entropy.random.randrange(2**16)  # Readers of one ledger spread over its bookies.
        self._avoided: dict[BookieId, float] = {}
        self._run_entries_max = min(config.read_entries_max, config.requests_in_flight_max)  # One request for each.
        self._run_entries = min(_RUN_ENTRIES_FIRST, self._run_entries_max)
        self._singles = _speculation_delay(config)
        self._batches = _speculation_delay(config)  # Batches take longer, so they are measured apart.

    async def read_chunk(self, metadata: LedgerMetadata, first: EntryId, last: EntryId) -> Sequence[Entry]:
        """Returns at least the first of these entries, and as many after it as fit into one chunk.

        Raises EntryAbsentError, EntryDamagedError or EntryUnavailableError if the first one cannot be read.
        """
        assert 0 <= first <= last
        last = min(last, _end_of_fragment(metadata, first))
        if first == last:
            return [await self._read_one(metadata, first)]
        if self._config.batch_reads and metadata.ensemble_size == metadata.write_quorum:
            answer = await self._read_batch(metadata, first, last)
            return answer.entries if answer else [await self._read_one(metadata, first)]
        return await self._read_run(metadata, first, EntryId(min(last, first + self._run_entries - 1)))

    async def _read_one(
        self,
        metadata: LedgerMetadata,
        entry_id: EntryId,
        heard: dict[BookieId, Answer] | None = None,
        last: BookieId | None = None,
    ) -> Entry:
        """Reads from all bookies except those that have answered; a bookie that was asked in vain comes last."""
        request = ReadEntry(self._keys.ledger_id, entry_id, version=V2)
        known = dict(heard or {})
        pauses = BusyRetries(self._random, self._timeout_s)
        while True:
            order = [bookie for bookie in self._order(metadata, entry_id) if bookie not in known]
            order.sort(key=lambda bookie: bookie == last)  # Stable: the others keep their order.
            outcome = await read_speculatively(order, lambda bookie: self._ask(bookie, request), self._singles)
            self._learn(metadata, outcome)
            if outcome.winner is not None:
                return outcome.winner.entries[0]
            known |= outcome.others
            busy = [bookie for bookie, answer in known.items() if is_busy(answer)]
            if not busy or not await pauses.pause():
                raise unreadable(self._keys.ledger_id, entry_id, known)
            for bookie in busy:
                del known[bookie]

    async def _ask(self, bookie: BookieId, request: ReadEntry) -> Answer:
        return await ask(self._bookies, bookie, self._keys, request, self._timeout_s)

    async def _read_batch(self, metadata: LedgerMetadata, first: EntryId, last: EntryId) -> Answer | None:
        """Returns None if no bookie could give a batch. They may still have the entries, each at another bookie."""
        request = BatchRead(
            self._keys.ledger_id,
            first,
            request_id=0,  # The channel chooses.
            entries_max=min(last - first + 1, self._config.read_entries_max),
            bytes_max=self._config.read_batch_bytes_max,
            version=V2,
        )
        outcome = await read_speculatively(
            self._order(metadata, first), lambda bookie: self._ask_batch(bookie, request), self._batches
        )
        self._learn(metadata, outcome)
        return outcome.winner

    async def _ask_batch(self, bookie: BookieId, request: BatchRead) -> Answer:
        response = await exchange(self._bookies, bookie, request, self._timeout_s)
        return interpret(self._keys, request.entry_id, response, entries_max=request.entries_max)

    async def _read_run(self, metadata: LedgerMetadata, first: EntryId, last: EntryId) -> list[Entry]:
        run = _Run(self._keys)
        asked = {entry_id: self._order(metadata, EntryId(entry_id))[0] for entry_id in range(first, last + 1)}
        shares: dict[BookieId, list[int]] = {}
        for entry_id, bookie in asked.items():
            shares.setdefault(bookie, []).append(entry_id)
        tasks = [asyncio.ensure_future(self._send_share(run, bookie, ids)) for bookie, ids in shares.items()]
        try:
            await asyncio.wait(tasks, timeout=self._singles.delay_s)
            missed = [EntryId(entry_id) for entry_id in asked if entry_id not in run.entries]
            self._avoid(metadata, [asked[entry_id] for entry_id in missed if entry_id not in run.heard])
            late = [asyncio.ensure_future(self._read_late(metadata, each, run, asked[each])) for each in missed]
            tasks += late
            await _all_or_first_error(late)
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)
        entries = [run.entries[entry_id] for entry_id in range(first, last + 1)]
        self._fit_runs(entries)
        return entries

    def _fit_runs(self, entries: list[Entry]) -> None:
        """Sets the next run to as many entries as are expected to fit into a batch."""
        largest = max(len(entry.payload) for entry in entries) + self._keys.digest.overhead_bytes
        fitting = self._config.read_batch_bytes_max // largest
        self._run_entries = max(1, min(self._run_entries_max, fitting))

    async def _send_share(self, run: _Run, bookie: BookieId, entry_ids: list[int]) -> None:
        try:
            channel = await self._bookies.channel(bookie)
            await run.collect(channel, entry_ids, self._timeout_s)
        except MagnetarError:  # In any case these entries are missing, and other bookies are asked for them.
            return

    async def _read_late(self, metadata: LedgerMetadata, entry_id: EntryId, run: _Run, asked: BookieId) -> None:
        entry = await self._read_one(metadata, entry_id, run.heard.get(entry_id), last=asked)
        run.entries.setdefault(entry_id, entry)

    def _order(self, metadata: LedgerMetadata, entry_id: EntryId) -> list[BookieId]:
        ensemble = metadata.fragment_of(entry_id).ensemble
        first = entry_id
        if self._config.sticky_reads and metadata.ensemble_size == metadata.write_quorum:
            first = EntryId(self._sticky)
        order = [ensemble[position] for position in write_set(len(ensemble), metadata.write_quorum, first)]
        if self._avoided:
            now = asyncio.get_running_loop().time()
            order.sort(key=lambda bookie: self._avoided.get(bookie, 0.0) > now)  # Stable: the others keep their order.
        return order

    def _learn(self, metadata: LedgerMetadata, outcome: Outcome) -> None:
        """Moves silent bookies to the end for a while; a sticky reader turns to another bookie."""
        silent = [*outcome.silent, *(bookie for bookie, answer in outcome.others.items() if answer.code is None)]
        self._avoid(metadata, silent)
        if outcome.others or outcome.silent:
            self._sticky += 1

    def _avoid(self, metadata: LedgerMetadata, silent: Sequence[BookieId]) -> None:
        if silent:
            until = asyncio.get_running_loop().time() + _AVOID_S
            self._avoided.update(dict.fromkeys(silent, until))
            self._forget_others(metadata)

    def _forget_others(self, metadata: LedgerMetadata) -> None:
        """Forgets bookies that are in no fragment: a ledger that lives long has many bookies over time."""
        members = {bookie for fragment in metadata.fragments for bookie in fragment.ensemble}
        self._avoided = {bookie: until for bookie, until in self._avoided.items() if bookie in members}


class _Run:
    """Collects the answers of several bookies to the reads of one chunk."""

    def __init__(self, keys: LedgerKeys) -> None:
        self._keys = keys
        self.entries: dict[int, Entry] = {}
        self.heard: dict[int, dict[BookieId, Answer]] = {}
        """The bookies that answered without having the entry."""

    async def collect(self, channel: Channel, entry_ids: list[int], timeout_s: float) -> None:
        """Returns when each of these was answered, or will not be."""
        share = _Share(self, len(entry_ids))
        ticket = channel.send_reads(self._keys.ledger_id, entry_ids, share, timeout_s=timeout_s)
        try:
            await share.done
        finally:
            ticket.cancel()

    def on_answer(self, bookie: BookieId, entry_id: int, code: int, body: Buffer) -> None:
        response = ReadResponse(code_of_number(code), self._keys.ledger_id, entry_id, body, version=V2)
        answer = interpret(self._keys, entry_id, response)
        if answer.entries:
            self.entries.setdefault(entry_id, answer.entries[0])
        else:
            self.heard.setdefault(entry_id, {})[bookie] = answer


class _Share:
    """Listens for one bookie's part of a run."""

    def __init__(self, run: _Run, count: int) -> None:
        self._run = run
        self._left = count
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()

    def on_read_answers(
        self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int], bodies: Sequence[Buffer]
    ) -> None:
        if self.done.done():
            return
        try:
            for entry_id, code, body in zip(entry_ids, codes, bodies, strict=True):
                self._run.on_answer(channel.bookie_id, entry_id, code, body)
        except MagnetarError as error:
            self.done.set_exception(error)
            return
        self._count(len(entry_ids))

    def on_reads_failed(self, channel: Channel, entry_ids: Sequence[int], error: MagnetarError) -> None:  # noqa: ARG002
        self._count(len(entry_ids))  # They are missing: other bookies are asked, and this one again, as the last.

    def _count(self, answered: int) -> None:
        self._left -= answered
        if self._left <= 0 and not self.done.done():
            self.done.set_result(None)


async def _all_or_first_error(tasks: list[asyncio.Task[None]]) -> None:
    """Raises the error of the first entry, in order, that cannot be read."""
    for task in tasks:
        await task


def _speculation_delay(config: LedgerConfig) -> SpeculationDelay:
    return SpeculationDelay(
        percentile=config.speculative_read_percentile,
        min_s=config.speculative_read_min_ms / 1000,
        max_s=config.speculative_read_max_ms / 1000,
    )


def _end_of_fragment(metadata: LedgerMetadata, entry_id: EntryId) -> EntryId:
    """Returns the last entry that the same bookies hold, as far as is known."""
    following = bisect_right(metadata.fragments, entry_id, key=lambda fragment: fragment.first_entry_id)
    if following == len(metadata.fragments):
        return EntryId(INT64_MAX)
    return EntryId(metadata.fragments[following].first_entry_id - 1)
