"""The rows of one split: entries are fetched on the loop's thread while this one decodes those before them.

Failure:   Spark may end a task without notice. Open requests then belong to the process, or time out.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Final

from magnetar.errors import EntryAbsentError, NoSuchLedgerError, TopicNotFoundError
from magnetar.schemas.data import SchemaData
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions, EntryRun, StoredEntry
from magnetar.spark.loop_thread import iterate, run
from magnetar.spark.reading.fetching import fetch
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.ranges import Range, Split
from magnetar.spark.reading.resolve_offsets import TimeRange
from magnetar.spark.reading.topics import TopicAdmin, TopicPart, topic_of

if TYPE_CHECKING:
    import pyarrow as pa

CALL_TIMEOUT_S: Final = 150.0  # Above the patience of brokers and bookies.
_RUNS_AHEAD: Final = 4  # About a megabyte each.
_ENTRIES_BACK: Final = 16  # Read at a time in the search for the beginning of a chunked message.


@dataclass(frozen=True, slots=True)
class RowReader:
    """All that a task needs to know. Picklable."""

    options: ReadOptions
    columns: Columns
    times: TimeRange = field(default_factory=TimeRange)

    def rows(self, split: Split | None) -> Iterator[pa.RecordBatch]:
        """Yields the rows. None: a query that has nothing to read has one task anyway."""
        if split is None:
            return
        decoder = EntryDecoder(self.columns, self._decode_options())
        for each in iterate(self._fetch(split), _RUNS_AHEAD):
            yield from decoder.feed(each)
        yield from decoder.finish()

    async def _fetch(self, split: Split) -> AsyncIterator[EntryRun]:
        cluster = await open_cluster(self.options.cluster)
        async for each in fetch(cluster, split.ranges, self.options):
            yield each

    def _decode_options(self) -> DecodeOptions:
        return DecodeOptions(
            encrypted="raw" if self.options.encrypted_raw else "refuse",
            fail_on_data_loss=self.options.fail_on_data_loss,
            entries_before=self._entries_before,
            writer_schema=self._writer_schema if self.columns.topic_schema is not None else None,
            publish_ms_min=self.times.first_ms,
            publish_ms_end=self.times.end_ms,
        )

    # --- requests of the decoder, on its own thread -------------------------------------------------------------------

    def _entries_before(self, topic: str, ledger_id: int, entry_id: int) -> Iterator[StoredEntry]:
        """Yields the nearest first, up to the first entry that is left."""
        for wanted in run(self._ranges_before(topic, ledger_id, entry_id), CALL_TIMEOUT_S):
            while wanted.entries > 0:
                rest, piece = _cut_back(wanted)
                yield from reversed(run(self._stored(piece), CALL_TIMEOUT_S))
                wanted = rest

    async def _ranges_before(self, topic: str, ledger_id: int, entry_id: int) -> list[Range]:
        cluster = await open_cluster(self.options.cluster)
        try:
            segments = await cluster.segments(topic)
        except TopicNotFoundError:
            return []
        partition = TopicPart(topic).partition
        return [
            Range(topic, partition, ledger, 0, (entry_id if ledger.ledger_id == ledger_id else ledger.entries) - 1)
            for ledger in reversed(segments.ledgers)
            if ledger.ledger_id <= ledger_id
        ]

    async def _stored(self, wanted: Range) -> list[StoredEntry]:
        cluster = await open_cluster(self.options.cluster)
        found: list[StoredEntry] = []
        try:
            async for each in fetch(cluster, [wanted], self.options):
                found += (
                    StoredEntry(each.ledger_id, each.first_entry_id + at, entry)
                    for at, entry in enumerate(each.entries)
                )
        except (EntryAbsentError, NoSuchLedgerError):
            return found
        return found

    def _writer_schema(self, topic: str, version: bytes) -> SchemaData:
        return run(self._schema(topic, version), CALL_TIMEOUT_S)

    async def _schema(self, topic: str, version: bytes) -> SchemaData:
        cluster = await open_cluster(self.options.cluster)
        return await TopicAdmin(cluster.http).schema(topic_of(topic), version)


def _cut_back(whole: Range) -> tuple[Range, Range]:
    """Returns all but the last few entries, and these."""
    first = max(whole.last - _ENTRIES_BACK + 1, whole.first)
    rest = Range(whole.topic, whole.partition, whole.ledger, whole.first, first - 1)
    return rest, Range(whole.topic, whole.partition, whole.ledger, first, whole.last)
