"""Entries of ranges, as they are stored: straight from the bookies, or through the topic's broker.

Order:     bookie: from the ledger's bookies, digests verified, several chunks ahead (spark/cluster.py). broker: through
           the topic's owner, for executors that cannot reach the bookies. auto: from the bookies; where they cannot be
           reached, the rest of the range comes through the broker, and the log reports it once for each ledger. The
           index of entries without one is looked up only when it is needed.
Failure:   a range existed when it was planned. If its ledger is listed no more, it was trimmed since, or the topic was
           deleted: a gap. If it is listed, and all bookies of an entry lack it, or have it damaged, that is loss.
           Without failOnDataLoss unreadable entries are left out, one by one, and logged. Markers at the end of a range
           never come from a broker: if nothing comes for a while, it is asked for its end.
Invariant: both ways give the same rows. The broker leaves markers out and, unless it is asked for, its own header. So
           entries come in runs without a gap, and each run gets the index of its first message, counted from the
           range's.
Limits:    a batch of a stream may end between two chunks of a message. The batch with the last chunk looks back for the
           first ones (spark/decoding/inputs.py), so the stream's subscription has to keep them. They are looked for in
           the last `WINDOW_ENTRIES` before the end of a batch. A message whose last stored chunk lies further back, as
           of a producer that died in the middle of it, no longer holds the subscription.
"""

from __future__ import annotations

import asyncio
import logging
import os
from collections.abc import AsyncGenerator, AsyncIterator, Sequence
from contextlib import aclosing
from dataclasses import replace
from itertools import groupby
from typing import Final

from magnetar.client import PulsarClient
from magnetar.client.consuming.raw_reader import RawEntry, RawReader
from magnetar.client.values import MessageId
from magnetar.errors import (
    BookieUnavailableError,
    BrokerTimeoutError,
    DataLossError,
    DataTrimmedError,
    EndOfTopicError,
    EntryAbsentError,
    EntryDamagedError,
    LedgerOffloadedError,
    MagnetarError,
    MalformedEntryError,
    NoSuchLedgerError,
    TopicNotFoundError,
)
from magnetar.runtime.system import SystemEntropy
from magnetar.spark.cluster import Cluster, Segments
from magnetar.spark.decoding.inputs import EntryRun, is_chunk
from magnetar.spark.reading.options import ReadOptions, ReadVia
from magnetar.spark.reading.ranges import Range, spot_of
from magnetar.spark.reading.stream_offsets import UNKNOWN, Spot, deleted, tolerate
from magnetar.spark.reading.topics import TopicPart
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.pulsar.entry import BROKER_ENTRY_MAGIC, messages_in, parse_entry
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

log = logging.getLogger(__name__)

_GONE = (EntryAbsentError, EntryDamagedError, NoSuchLedgerError)
_SKIPPED_MAX: Final = 1_000  # Unreadable entries in a row; after them, the rest of the ledger is given up.
_MAGIC: Final = BROKER_ENTRY_MAGIC.to_bytes(2, "big")
_QUIET_S: Final = 1.0  # After this silence the broker is asked whether anything is left.
_SILENCES_MAX: Final = 60

_clients: dict[str, PulsarClient] = {}
"""Clients by service URL, of this process; used on the loop's thread only."""
WINDOW_ENTRIES: Final = 8
"""Producers send the chunks of a message one after another; entries of other producers come between."""
_LOOK_BACK_ENTRIES_MAX: Final = 1_000  # For the first chunk of an incomplete message: 5 GB of chunks.


def _client(service_url: str) -> PulsarClient:
    if service_url not in _clients:
        _clients[service_url] = PulsarClient(service_url, SystemEntropy())
    return _clients[service_url]


os.register_at_fork(after_in_child=_clients.clear)


async def read_through_broker(service_url: str, wanted: Range, first_index: int) -> AsyncIterator[EntryRun]:
    """Yields runs in order. Ends at the range's last entry, or where the topic has no more of its entries."""
    start = MessageId(wanted.ledger.ledger_id, wanted.first)
    reader = await _client(service_url).raw_reader(wanted.topic, start)
    counter = _Counter(wanted, first_index)
    try:
        while not counter.is_done:
            entries = await _take(reader, counter)
            for run in counter.runs(entries):
                yield run
    finally:
        await reader.aclose()


async def _take(reader: RawReader, counter: _Counter) -> Sequence[RawEntry]:
    """Returns nothing when the range is at its end without its last entry."""
    for _ in range(_SILENCES_MAX):
        try:
            return await reader.take(_QUIET_S)
        except EndOfTopicError:
            counter.is_done = True
            return ()
        except TimeoutError:
            marked = await reader.marked()
            if marked is not None and Position(*marked[:2]) >= counter.last:
                counter.is_done = True
                return ()
        await asyncio.sleep(0)
    raise BrokerTimeoutError(
        f"{reader.topic}: the broker sent nothing for {_QUIET_S * _SILENCES_MAX:g} s, and {counter.last} is not "
        "reached: it cannot read these entries, or keeps them back by a dispatch rate"
    )


class _Counter:
    """Cuts received entries into runs, and counts the index of their first messages."""

    def __init__(self, wanted: Range, first_index: int) -> None:
        self.is_done = False
        self.last = Position(wanted.ledger.ledger_id, wanted.last)
        self._wanted = wanted
        self._next_id = wanted.first
        self._next_index = first_index

    def runs(self, entries: Sequence[RawEntry]) -> list[EntryRun]:
        wanted = [entry for entry in entries if entry[:2] <= self.last]
        self.is_done = self.is_done or len(wanted) < len(entries) or (bool(wanted) and wanted[-1][:2] == self.last)
        grouped = groupby(enumerate(wanted), key=lambda numbered: numbered[1].entry_id - numbered[0])
        return [self._run([entry for _, entry in group]) for _, group in grouped]

    def _run(self, entries: list[RawEntry]) -> EntryRun:
        wanted, first = self._wanted, entries[0]
        first_index = self._next_index + first.entry_id - self._next_id  # A marker counts as one message.
        self._next_id = entries[-1].entry_id + 1
        self._next_index = first_index + sum(entry.messages for entry in entries)
        return _run_of(wanted, first.entry_id, [entry.data for entry in entries], first_index)


def _run_of(
    wanted: Range, first: int, entries: Sequence[Buffer], first_index: int, *, is_verified: bool = False
) -> EntryRun:
    where = wanted.topic, wanted.partition, wanted.ledger.ledger_id, first
    skipped = wanted.skipped if first == wanted.first else 0
    stop = wanted.stop if first + len(entries) - 1 == wanted.last else None
    return EntryRun(*where, entries, first_index, skipped, stop, is_verified)


async def fetch(cluster: Cluster, ranges: Sequence[Range], options: ReadOptions) -> AsyncIterator[EntryRun]:
    fetcher = Fetcher(cluster, options)
    for wanted in ranges:
        async for run in fetcher.runs(wanted):
            yield run


class Fetcher:
    def __init__(self, source: Cluster, options: ReadOptions) -> None:
        self._source = source
        self._options = options
        self._unreachable: set[int] = set()
        """Ledgers whose bookies did not answer: this task does not ask them again."""

    async def runs(self, wanted: Range) -> AsyncIterator[EntryRun]:
        rest, failures = wanted, 0
        while rest.entries > 0:
            try:
                async with aclosing(self._road(rest)) as road:
                    async for run in road:
                        yield run
                        rest, failures = replace(rest, first=run.first_entry_id + len(run.entries), skipped=0), 0
                return
            except (BookieUnavailableError, LedgerOffloadedError) as error:
                self._turn_to_broker(rest, error)
            except _GONE as error:
                failures += 1
                rest = await self._without(rest, error, failures)

    def _road(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        via_broker = self._options.read_via is ReadVia.BROKER or wanted.ledger.ledger_id in self._unreachable
        return self._through_broker(wanted) if via_broker else self._from_bookies(wanted)

    async def _from_bookies(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        ledger = wanted.ledger
        index = wanted.first_index
        async for first, entries in self._source.read_entries(ledger, wanted.first, wanted.last):
            carries_index = bytes(entries[0][:2]) == _MAGIC
            if not carries_index and index is None:
                index = await self._index_at(wanted, first)
            is_verified = ledger.digest_type is not DigestType.DUMMY
            yield _run_of(wanted, first, entries, index or 0, is_verified=is_verified)
            if not carries_index and index is not None:
                index += sum(messages_in(parse_entry(entry).metadata) for entry in entries)

    async def _through_broker(self, wanted: Range) -> AsyncGenerator[EntryRun, None]:
        index = wanted.first_index
        if index is None:
            index = await self._index_at(wanted, wanted.first)
        at = wanted.first
        async for run in read_through_broker(self._options.cluster.service_url, wanted, index):
            yield run
            at = run.first_entry_id + len(run.entries)
        if at <= wanted.last:  # Either markers are at its end, or it was deleted.
            tolerate(await self._trouble(wanted, None), fail_on_data_loss=self._options.fail_on_data_loss)

    async def _index_at(self, wanted: Range, entry_id: int) -> int:
        spot = await spot_of(self._source, wanted.topic, f"{wanted.ledger.ledger_id}:{entry_id}")
        if spot.index == UNKNOWN:
            raise DataLossError(
                f"entry {spot} of {wanted.topic} carries no index, and entries that would show it are lost: it cannot "
                "be numbered. magnetar pipeline scrub finds all such entries"
            )
        return spot.index

    def _turn_to_broker(self, rest: Range, error: MagnetarError) -> None:
        ledger_id = rest.ledger.ledger_id
        if self._options.read_via is not ReadVia.AUTO:
            raise BookieUnavailableError(
                f"{error}. Option readVia is bookie; with auto, entries come through the broker where bookies cannot "
                "be reached from here"
            ) from error
        self._unreachable.add(ledger_id)
        log.warning("ledger %d of %s is read through the broker from now on: %s", ledger_id, rest.topic, error)

    async def _without(self, rest: Range, error: Exception, failures: int) -> Range:
        """Returns the rest without its unreadable first entry; raises unless that may be left out."""
        trouble = await self._trouble(rest, error)
        tolerate(trouble, fail_on_data_loss=self._options.fail_on_data_loss)
        following = rest.first + 1
        if isinstance(trouble, DataTrimmedError) or isinstance(error, NoSuchLedgerError):
            following = rest.last + 1
        elif failures > _SKIPPED_MAX and following <= rest.last:
            log.warning(
                "entries %d to %d of ledger %d of %s are skipped without being read: the %d entries before them "
"cannot be read",
                following, rest.last, rest.ledger.ledger_id, rest.topic, failures,
            )  # fmt: skip
            following = rest.last + 1
        return replace(rest, first=following, skipped=0)

    async def _trouble(self, rest: Range, error: Exception | None) -> DataLossError | None:
        """Explains why the first entry of a range cannot be read. None: no error, markers are at its end."""
        ledger_id, spot = rest.ledger.ledger_id, Spot(rest.ledger.ledger_id, rest.first)
        try:
            segments = await self._source.segments(rest.topic)
        except TopicNotFoundError:
            return deleted(rest.topic, spot)
        if all(ledger.ledger_id != ledger_id for ledger in segments.ledgers):
            return DataTrimmedError(
                f"ledger {ledger_id} of {rest.topic} was removed by retention since this batch was planned: entries "
                f"{rest.first} to {rest.last} are gone. They were not lost. Read again; keep messages longer, or hold "
                "them with option subscription. With failOnDataLoss=false they are left out"
            )
        if error is None:
            return None
        return DataLossError(
            f"entry {spot} of {rest.topic} is lost: the topic lists it, and it cannot be read: {error}. "
            "magnetar pipeline scrub finds all such entries. With failOnDataLoss=false they are left out"
        )


# --- chunks of incomplete messages ------------------------------------------------------------------------------------


async def first_open_chunk(
    source: Cluster, options: ReadOptions, part: str, end: Spot, from_ledger: int
) -> Position | None:
    """Returns the first chunk before `end` of a message whose last chunk is not before it; None without such a message.
    Ledgers below `from_ledger` are ignored: nothing keeps them."""
    segments = await source.segments(part, from_ledger)
    found = _Open()
    seen = 0
    async for position, entry in _backwards(source, options, part, end, segments):
        if (seen >= WINDOW_ENTRIES and not found.headless) or seen >= _LOOK_BACK_ENTRIES_MAX:
            break
        found.see(position, _metadata(entry), is_near=seen < WINDOW_ENTRIES)
        seen += 1
    return min(found.firsts.values(), default=None)


class _Open:
    """Messages that are not complete, from their last stored chunk backwards."""

    def __init__(self) -> None:
        self.firsts: dict[str, Position] = {}
        """Message → the first of its chunks that was seen."""
        self.headless: set[str] = set()
        """Messages whose chunk 0 was not seen yet."""
        self._complete: set[str] = set()

    def see(self, position: Position, metadata: MessageMetadata | None, *, is_near: bool) -> None:
        if metadata is None or not is_chunk(metadata) or metadata.uuid in self._complete:
            return
        if metadata.uuid not in self.firsts:
            if metadata.chunk_id == metadata.num_chunks_from_msg - 1 or not is_near:
                self._complete.add(metadata.uuid)
                return
            self.headless.add(metadata.uuid)
        self.firsts[metadata.uuid] = position
        if metadata.chunk_id == 0:
            self.headless.discard(metadata.uuid)


async def _backwards(
    source: Cluster, options: ReadOptions, part: str, end: Spot, segments: Segments
) -> AsyncIterator[tuple[Position, Buffer]]:
    fetcher = Fetcher(source, options)
    partition = TopicPart(part).partition
    for ledger in reversed([each for each in segments.ledgers if each.ledger_id <= end.ledger_id]):
        behind = min(ledger.entries, end.entry_id) if ledger.ledger_id == end.ledger_id else ledger.entries
        while behind > 0:
            first = max(behind - WINDOW_ENTRIES, 0)
            entries: list[tuple[Position, Buffer]] = []
            async for run in fetcher.runs(Range(part, partition, ledger, first, behind - 1)):
                numbered = enumerate(run.entries, run.first_entry_id)
                entries += [(Position(run.ledger_id, number), entry) for number, entry in numbered]
            for each in reversed(entries):
                yield each
            behind = first


def _metadata(entry: Buffer) -> MessageMetadata | None:
    """Returns None for an unreadable entry: the task that reads it reports that."""
    try:
        return parse_entry(entry).metadata
    except MalformedEntryError:
        return None
