"""Finds where a stream's subscription has to wait: before the first chunk of a message that is not complete yet.

Purpose:   a batch may end between two chunks of a message. The batch with the last chunk looks back for the first ones
           (spark/decoding/chunks.py). If they are in a ledger that ends there, only the subscription keeps that ledger.
Limits:    the last `WINDOW_ENTRIES` before the end of a batch are looked at. A message whose last stored chunk lies
           further back, as of a producer that died in the middle of it, no longer holds the subscription.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import TYPE_CHECKING, Final

from magnetar.errors import MalformedEntryError
from magnetar.spark.decoding.chunks import is_chunk
from magnetar.spark.reading.fetching import Fetcher
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.ranges import Range
from magnetar.spark.reading.stream_offsets import Spot
from magnetar.spark.reading.topics import TopicPart
from magnetar.topic.position import Position
from magnetar.wire.pulsar.entry import parse_entry

if TYPE_CHECKING:
    from magnetar.spark.cluster_values import Segments
    from magnetar.spark.reading.fetching import EntrySource
    from magnetar.wire.pulsar.frames import Buffer
    from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

WINDOW_ENTRIES: Final = 8
"""Producers send the chunks of a message one after another; entries of other producers come between."""
_LOOK_BACK_ENTRIES_MAX: Final = 1_000  # For the first chunk of an incomplete message: 5 GB of chunks.


async def first_open_chunk(
    source: EntrySource, options: ReadOptions, part: str, end: Spot, from_ledger: int
) -> Position | None:
    """Returns the first chunk before `end` of a message whose last chunk is not before it; None without such a message.
    Ledgers below `from_ledger` are ignored: nothing keeps them."""
    segments = await source.segments(part, from_ledger)
    found = _Open()
    seen = 0
    async for position, entry in _backwards(source, options, part, end, segments):
        if (seen >= WINDOW_ENTRIES and not found.is_searching) or seen >= _LOOK_BACK_ENTRIES_MAX:
            break
        found.see(position, _metadata(entry), is_near=seen < WINDOW_ENTRIES)
        seen += 1
    return min(found.firsts.values(), default=None)


class _Open:
    """Messages that are not complete, from their last stored chunk backwards."""

    def __init__(self) -> None:
        self.firsts: dict[str, Position] = {}
        """Message → the first of its chunks that was seen."""
        self._complete: set[str] = set()
        self._headless: set[str] = set()
        """Messages whose chunk 0 was not seen yet."""

    @property
    def is_searching(self) -> bool:
        return bool(self._headless)

    def see(self, position: Position, metadata: MessageMetadata | None, *, is_near: bool) -> None:
        if metadata is None or not is_chunk(metadata) or metadata.uuid in self._complete:
            return
        if metadata.uuid not in self.firsts:
            if metadata.chunk_id == metadata.num_chunks_from_msg - 1 or not is_near:
                self._complete.add(metadata.uuid)
                return
            self._headless.add(metadata.uuid)
        self.firsts[metadata.uuid] = position
        if metadata.chunk_id == 0:
            self._headless.discard(metadata.uuid)


async def _backwards(
    source: EntrySource, options: ReadOptions, part: str, end: Spot, segments: Segments
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
