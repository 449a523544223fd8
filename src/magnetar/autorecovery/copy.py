"""Copies entries of a fragment to bookies, chunk by chunk.

Order:     a chunk is read from bookies that have its entries, its digests are verified, and it is written to its
           targets; the next chunks are in progress meanwhile. `copy` returns when every bookie has confirmed every
           entry that it was to get, which it does after its disk has it: only then may the metadata name the bookie.
Format:    a copy is sealed anew from the verified entry, with the LAC and the length that it had: the same bytes. It is
           an add with the flags of a recovery, which a fence lets through.
Failure:   an entry that no bookie has, or that all have damaged, is lost; the other chunks are copied anyway, so that
           all lost entries are found. If a bookie that may have an entry does not answer, nothing is decided:
           EntryUnavailableError. A target that does not take its entries: CopyFailedError.
Limits:    chunks in flight, the size of a chunk, bytes per second, and the time for one chunk.
Read next: repair.py, ledger/channels/channel.py
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import islice
from typing import Final

from magnetar.autorecovery.examine import ask_patiently, requests_share
from magnetar.autorecovery.fragments import Targets
from magnetar.autorecovery.rate import ByteRate
from magnetar.config.recovery import RecoveryConfig
from magnetar.errors import BookieUnavailableError, CopyFailedError, EntryUnavailableError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.answers import Answer, Finding, describe
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.channels.pending_requests import AddListener
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata import LedgerKeys
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.gather import cancel_all, gather_bounded
from magnetar.runtime.uncancelled import ignore_outcome
from magnetar.wire.bookkeeper.codes import Code, code_of_number
from magnetar.wire.bookkeeper.digests import Entry
from magnetar.wire.bookkeeper.frames import Buffer, Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder

LOST_MAX: Final = 10_000  # Lost entries that one try looks for: each costs a question to every bookie.
_CHUNK_ENTRIES_MAX: Final = 1_000
_CHUNK_TIMEOUT_S: Final = 30.0  # For a bookie that flushes, or is overloaded by writers.
_TRIES: Final = 2  # Of a bookie that gives no answer: another one may have the entries as well.
_BUSY_FIRST_S: Final = 0.02
_BUSY_LONGEST_S: Final = 0.5
_OK: Final = int(Code.EOK)
_BUSY: Final = int(Code.ETOOMANYREQUESTS)
_NOT_HERE = (Finding.ABSENT, Finding.DAMAGED, Finding.LIMBO)


@dataclass(slots=True)
class CopyProgress:
    """What one worker has copied for one ledger."""

    entries: int = 0
    bytes: int = 0
    entries_to_copy: int = 0
    began_at: float = 0.0


@dataclass(slots=True)
class Copied:
    lost: dict[int, str] = field(default_factory=dict)
    """Entries that no bookie could give, and what the bookies said."""

    @property
    def is_complete(self) -> bool:
        return not self.lost


class FragmentCopier:
    """Copies for one ledger."""

    def __init__(
        self,
        keys: LedgerKeys,
        context: LedgerContext,
        config: RecoveryConfig,
        rate: ByteRate,
        progress: CopyProgress,
        *,
        is_serving: Callable[[BookieId], bool],
        entry_bytes: int,
    ) -> None:
        self._keys = keys
        self._context = context
        self._config = config
        self._rate = rate
        self._progress = progress
        self._is_serving = is_serving
        share = requests_share(context, config.ledgers_at_once * config.chunks_in_flight_max)
        self._chunk_entries = max(1, min(_CHUNK_ENTRIES_MAX, share, config.chunk_bytes_max // entry_bytes))
        self._header = AddEncoder(
            keys.ledger_id, keys.master_key, keys.digest, Flag.RECOVERY_ADD | Flag.HIGH_PRIORITY
        ).header
        self._silent: dict[BookieId, None] = {}
        """Bookies that are not registered and did not answer: they are asked once."""

    async def copy(self, targets: Targets) -> Copied:
        result = Copied()
        to = sorted({bookie for _, bookie in _all_targets(targets)})
        sinks = {bookie: CopySink(bookie, self._keys.ledger_id, self._context) for bookie in to}
        try:
            for sink in sinks.values():
                await sink.open()
            await self._copy_chunks(targets, sinks, result)
        finally:
            for sink in sinks.values():
                sink.close()
        return result

    async def _copy_chunks(self, targets: Targets, sinks: Mapping[BookieId, CopySink], result: Copied) -> None:
        chunks = _chunks(targets.entries(), self._chunk_entries)
        running: list[asyncio.Task[None]] = []
        loop = asyncio.get_running_loop()
        try:
            while True:
                while len(running) < self._config.chunks_in_flight_max and len(result.lost) < LOST_MAX:
                    chunk = next(chunks, None)
                    if chunk is None:
                        break
                    running.append(loop.create_task(self._copy_chunk(targets, chunk, sinks, result)))
                if not running:
                    return
                await asyncio.wait(running, return_when=asyncio.FIRST_COMPLETED)
                for task in [task for task in running if task.done()]:
                    running.remove(task)
                    task.result()
        finally:
            await cancel_all(running)

    async def _copy_chunk(
        self, targets: Targets, chunk: _Chunk, sinks: Mapping[BookieId, CopySink], result: Copied
    ) -> None:
        entries = await self._read(targets, [entry_id for entry_id, _ in chunk], result)
        frames: dict[BookieId, dict[int, list[Buffer]]] = {}
        for entry_id, bookies in chunk:
            entry = entries.get(entry_id)
            if entry is None:
                continue
            frame: list[Buffer] = [self._header(entry_id, entry.lac, entry.length, entry.payload), entry.payload]
            for bookie in bookies:
                frames.setdefault(bookie, {})[entry_id] = frame
        size = sum(len(buffer) for share in frames.values() for frame in share.values() for buffer in frame)
        await self._rate.take(size)
        works = [partial(sinks[bookie].add, share) for bookie, share in frames.items()]
        if works:
            await gather_bounded(works, len(works))
        self._progress.entries += sum(map(len, frames.values()))
        self._progress.bytes += size

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _read(self, targets: Targets, entry_ids: Sequence[int], result: Copied) -> dict[int, Entry]:
        """Asks the bookies of each entry in turn. Raises EntryUnavailableError if one that may have it is silent."""
        sources = {entry_id: self._sources(targets, entry_id) for entry_id in entry_ids}
        answers: dict[int, dict[BookieId, Answer]] = {entry_id: {} for entry_id in entry_ids}
        found: dict[int, Entry] = {}
        open_ids = list(entry_ids)
        for rank in range(targets.fragment.write_quorum):
            shares: dict[BookieId, list[int]] = {}
            for entry_id in open_ids:
                shares.setdefault(sources[entry_id][rank], []).append(entry_id)
            for bookie, heard in await self._ask_all(shares):
                for entry_id, answer in heard.items():
                    answers[entry_id][bookie] = answer
                    if answer.finding is Finding.PRESENT:
                        found[entry_id] = answer.entries[0]
            open_ids = [entry_id for entry_id in open_ids if entry_id not in found]
            if not open_ids:
                break
        for entry_id in open_ids:
            self._give_up(entry_id, answers[entry_id], result)
        return found

    def _sources(self, targets: Targets, entry_id: int) -> list[BookieId]:
        """Returns the bookies of the write set: those that are to be kept first, those that are away last."""
        bookies = [targets.fragment.ensemble[position] for position in targets.sources(entry_id)]
        bookies.sort(key=lambda bookie: not self._is_serving(bookie))  # Stable.
        return bookies

    async def _ask_all(self, shares: dict[BookieId, list[int]]) -> list[tuple[BookieId, dict[int, Answer]]]:
        works = [partial(self._ask, bookie, entry_ids) for bookie, entry_ids in shares.items()]
        return await gather_bounded(works, len(works))

    async def _ask(self, bookie: BookieId, entry_ids: list[int]) -> tuple[BookieId, dict[int, Answer]]:
        if bookie in self._silent:
            return bookie, dict.fromkeys(entry_ids, Answer(Finding.UNREACHABLE, why="it is not registered"))
        tries_max = _TRIES if self._is_serving(bookie) else 1
        heard = await ask_patiently(self._context, bookie, self._keys, entry_ids, tries_max=tries_max)
        unreachable = all(answer.finding is Finding.UNREACHABLE for answer in heard.values())
        if unreachable and not self._is_serving(bookie):
            self._silent[bookie] = None
        return bookie, heard

    def _give_up(self, entry_id: int, answers: dict[BookieId, Answer], result: Copied) -> None:
        for bookie, answer in answers.items():
            if answer.finding not in _NOT_HERE and self._is_serving(bookie):
                raise EntryUnavailableError(
                    f"entry {entry_id} of ledger {self._keys.ledger_id} could not be read ({describe(answers)})"
                )
        if len(result.lost) < LOST_MAX:
            result.lost[entry_id] = describe(answers)


_Chunk = list[tuple[int, tuple[BookieId, ...]]]


def _chunks(entries: Iterator[tuple[int, tuple[BookieId, ...]]], size: int) -> Iterator[_Chunk]:
    while chunk := list(islice(entries, size)):
        yield chunk


def _all_targets(targets: Targets) -> Iterator[tuple[int, BookieId]]:
    yield from targets.swaps.items()
    for position, entries in targets.fills.items():
        if entries:
            yield position, targets.fragment.ensemble[position]


# --- writing ----------------------------------------------------------------------------------------------------------


class _Share:
    """The copies of one chunk that one bookie gets."""

    def __init__(self, frames: Mapping[int, list[Buffer]]) -> None:
        self.frames = frames
        self.unanswered = dict.fromkeys(frames)
        self.busy: list[int] = []
        self.done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.done.add_done_callback(ignore_outcome)  # Its caller may have been cancelled.


class CopySink(AddListener):
    """Writes copies of one ledger's entries to one bookie: `open`, any number of `add` at a time, `close`."""

    def __init__(self, bookie: BookieId, ledger_id: int, context: LedgerContext) -> None:
        self._bookie = bookie
        self._ledger_id = ledger_id
        self._context = context
        self._channel: Channel | None = None
        self._shares: dict[int, _Share] = {}
        """Entry → the share that waits for its answer."""
        self._writable = asyncio.Event()
        self._writable.set()

    async def open(self) -> None:
        try:
            channel = await self._context.bookies.channel(self._bookie, ledger_id=self._ledger_id)
            channel.attach(self._ledger_id, self)
        except BookieUnavailableError as error:
            raise self._failed(str(error)) from error
        self._channel = channel

    async def add(self, frames: Mapping[int, list[Buffer]]) -> None:
        """Returns when the bookie has confirmed all of these entries. Raises CopyFailedError."""
        try:
            async with asyncio.timeout(_CHUNK_TIMEOUT_S):
                await self._add(frames)
        except TimeoutError:
            raise self._failed(f"it did not confirm all entries within {_CHUNK_TIMEOUT_S:g} s") from None

    async def _add(self, frames: Mapping[int, list[Buffer]]) -> None:
        pauses = Backoff(self._context.entropy.random, _BUSY_FIRST_S, _BUSY_LONGEST_S)
        while True:
            share = await self._send(frames)
            try:
                await share.done
            finally:
                if not share.done.done():
                    share.done.cancel()
            if not share.busy:
                return
            frames = {entry_id: frames[entry_id] for entry_id in share.busy}
            await asyncio.sleep(pauses.next_s())

    async def _send(self, frames: Mapping[int, list[Buffer]]) -> _Share:
        channel = self._channel
        assert channel is not None, "not open"
        while not channel.is_writable and not channel.is_lost:
            self._writable.clear()
            await self._writable.wait()
        if channel.is_lost:
            raise self._failed(str(channel.error))
        share = _Share(frames)
        self._shares.update(dict.fromkeys(frames, share))
        channel.send_adds([buffer for frame in frames.values() for buffer in frame])
        return share

    def on_add_answers(self, channel: Channel, entry_ids: Sequence[int], codes: Sequence[int]) -> None:  # noqa: ARG002
        for entry_id, code in zip(entry_ids, codes, strict=True):
            share = self._shares.pop(entry_id, None)
            if share is None:
                continue
            share.unanswered.pop(entry_id, None)
            if code == _BUSY:
                share.busy.append(entry_id)
            elif code != _OK and not share.done.done():
                why = f"it refused entry {entry_id} of ledger {self._ledger_id}: {code_of_number(code).name}"
                share.done.set_exception(self._failed(why))
            if not share.unanswered and not share.done.done():
                share.done.set_result(None)

    def on_channel_lost(self, channel: Channel, error: MagnetarError) -> None:  # noqa: ARG002
        self._writable.set()
        shares, self._shares = self._shares, {}
        for share in shares.values():
            if not share.done.done():
                share.done.set_exception(self._failed(str(error)))

    def on_writable(self, channel: Channel) -> None:  # noqa: ARG002
        self._writable.set()

    def close(self) -> None:
        channel, self._channel = self._channel, None
        if channel is not None:
            channel.detach(self._ledger_id, self, unanswered=len(self._shares))
        self._shares.clear()

    def _failed(self, why: str) -> CopyFailedError:
        return CopyFailedError(self._bookie, f"bookie {self._bookie} does not take copies: {why}")
