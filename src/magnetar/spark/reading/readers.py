"""The readers that Spark calls, one for a batch query, one for a streaming query; made of the schema that it wants and
the options.

Order:     the columns of a read are the raw ones, or those of the topic's schema; and of them, those of the user's
           schema. A batch query is planned once: a DataFrame is a snapshot of the topic.
Threads:   one `StreamReader` on the driver lives as long as the query, in a process of its own: it has the `Follower`.
           Tasks get another one, without its state. In a task, entries are fetched on the loop's thread while the
           task's own decodes those before them. Spark may end a task without notice: open requests then belong to the
           process, or time out.
Read next: ranges.py (plans of batches), following.py (plans of streams), fetching.py
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, TypeVar

import pyarrow as pa
from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)
from pyspark.sql.types import StructType

from magnetar.errors import ConfigError, EntryAbsentError, NoSuchLedgerError, TopicNotFoundError
from magnetar.runtime.system import SystemEntropy
from magnetar.schemas.data import SchemaData
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns, raw_columns, topic_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import DecodeOptions, EntryRun, StoredEntry
from magnetar.spark.loop_thread import iterate, run
from magnetar.spark.reading.fetching import fetch
from magnetar.spark.reading.following import PATIENCE_S, Follower, Limit
from magnetar.spark.reading.options import ReadOptions, parse_read_options, require_batch, require_stream
from magnetar.spark.reading.ranges import Range, Split, TimeRange, plan_batch, times_of
from magnetar.spark.reading.stream_offsets import from_json, to_json
from magnetar.spark.reading.topics import TopicAdmin, TopicPart, find_parts, topic_of
from magnetar.spark.source import freeze_imports

T = TypeVar("T")
_STREAM_TIMEOUT_S: Final = 2 * PATIENCE_S + 60  # Above the follower's own patience, whose error names the cause.


def make_reader(schema: StructType, options: Mapping[str, str]) -> BatchReader:
    """Makes the reader for `DataSource.reader`. Raises ConfigError, TopicNotFoundError."""
    require_batch(options)
    parsed = parse_read_options(options)
    return BatchReader(parsed, _columns(schema, parsed))


def make_stream_reader(schema: StructType, options: Mapping[str, str]) -> StreamReader:
    """Makes the reader for `DataSource.streamReader`. Raises ConfigError, TopicNotFoundError."""
    require_stream(options)
    parsed = parse_read_options(options)
    return StreamReader(parsed, _columns(schema, parsed))


def _columns(schema: StructType, options: ReadOptions) -> Columns:
    from pyspark.sql.pandas.types import to_arrow_schema

    return chosen_columns(options, to_arrow_schema(schema, timezone="UTC"))


def all_columns(options: ReadOptions) -> Columns:
    """Asks the cluster only for typed ones. Raises TopicNotFoundError, SchemaMissingError."""
    if not options.typed:
        return raw_columns(include_headers=options.include_headers)
    return topic_columns(run(_schemas(options), CALL_TIMEOUT_S)[0], include_headers=options.include_headers)


def chosen_columns(options: ReadOptions, wanted: pa.Schema) -> Columns:
    """Returns the wanted columns; raises ConfigError for an unknown name or type.

    A query's columns are those of the schema that the topic had when it was begun. If the newest one has other columns
    by now, an older version is found that has them.
    """
    if not options.typed:
        return all_columns(options).select(wanted)
    first_error: ConfigError | None = None
    for schema in run(_schemas(options), CALL_TIMEOUT_S):
        try:
            return topic_columns(schema, include_headers=options.include_headers).select(wanted)
        except ConfigError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


async def _schemas(options: ReadOptions) -> list[SchemaData]:
    """Returns the first topic's schemas: messages of other topics are mapped onto it. The newest first, at least
    one."""
    cluster = await open_cluster(options.cluster)
    parts = await find_parts(cluster, options.subject)
    if not parts:
        raise TopicNotFoundError(f"no {options.subject} exist, so there is no schema to read them by")
    await cluster.segments(parts[0].name)  # A missing topic raises its own error, not that of a missing schema.
    admin = TopicAdmin(cluster.http)
    newest = await admin.schema(parts[0].topic)
    return [newest, *(await admin.schemas(parts[0].topic))[1:]]


# --- readers ----------------------------------------------------------------------------------------------------------


def _cores_here() -> int:
    """Returns the cores of the driver's machine: a worker that plans does not learn the number of executors."""
    return os.cpu_count() or 1


class BatchReader(DataSourceReader):
    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        times = times_of(options, SystemEntropy().wall_ms())
        self._rows = RowReader(options, columns, times)

    def partitions(self) -> list[InputPartition]:
        return [InputPartition(split) for split in run(self._plan(), CALL_TIMEOUT_S)]

    async def _plan(self) -> list[Split]:
        options = self._rows.options
        cluster = await open_cluster(options.cluster)
        return await plan_batch(cluster, options, cores=_cores_here(), times=self._rows.times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition.value)


class StreamReader(DataSourceStreamReader, SupportsTriggerAvailableNow):
    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._rows = RowReader(options, columns)
        self._follower: Follower | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the follower, which tasks do not need."""
        return {**self.__dict__, "_follower": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        return to_json(self._ask(lambda follower: follower.initial()))

    def getDefaultReadLimit(self) -> ReadLimit:  # noqa: N802 - Spark's name
        """Returns one limit, as there is room for one; if both options are given, `latestOffset` adds the other."""
        options = self._rows.options
        if options.messages_per_trigger_max is not None:
            return ReadMaxRows(options.messages_per_trigger_max)
        if options.bytes_per_trigger_max is not None:
            return ReadMaxBytes(options.bytes_per_trigger_max)
        return ReadAllAvailable()

    def latestOffset(self, start: dict[str, Any], limit: ReadLimit) -> dict[str, Any]:  # noqa: N802 - Spark's name
        offset = from_json(start)
        latest = self._ask(lambda follower: follower.latest(offset, self._limit(limit)))
        return start if latest is offset else to_json(latest)

    def _limit(self, limit: ReadLimit) -> Limit:
        options = self._rows.options
        messages, size_bytes = options.messages_per_trigger_max, options.bytes_per_trigger_max
        if isinstance(limit, ReadMaxRows):
            return Limit(limit.max_rows, size_bytes)
        if isinstance(limit, ReadMaxBytes):
            return Limit(messages, limit.max_bytes)
        return Limit()  # Spark wants everything, whatever the options say.

    def reportLatestOffset(self) -> dict[str, Any] | None:  # noqa: N802 - Spark's name
        known = self._ask(lambda follower: follower.known())
        return None if known is None else to_json(known)

    def prepareForTriggerAvailableNow(self) -> None:  # noqa: N802 - Spark's name
        self._ask(lambda follower: follower.available_now())

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = from_json(start), from_json(end)
        return [InputPartition(split) for split in self._ask(lambda follower: follower.plan(first, last))]

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        self._ask(lambda follower: follower.commit(from_json(end)))

    def stop(self) -> None:
        """Is not called when a query ends well: Spark ends the process."""
        if self._follower is not None:
            self._ask(lambda follower: follower.aclose())
            self._follower = None

    def _ask(self, work: Callable[[Follower], Awaitable[T]]) -> T:
        """Runs the work on the loop's thread, where the follower lives."""
        return run(self._with_follower(work), _STREAM_TIMEOUT_S)

    async def _with_follower(self, work: Callable[[Follower], Awaitable[T]]) -> T:
        if self._follower is None:
            options = self._rows.options
            cluster = await open_cluster(options.cluster)
            self._follower = Follower(cluster, TopicAdmin(cluster.http), options, _cores_here())
        return await work(self._follower)


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

    def _entries_before(self, topic: str, ledger_id: int, entry_id: int) -> Iterator[StoredEntry]:
        """Yields the nearest first, up to the first entry that is left."""
        for wanted in run(self._ranges_before(topic, ledger_id, entry_id), CALL_TIMEOUT_S):
            while wanted.entries > 0:
                first = max(wanted.last - _ENTRIES_BACK + 1, wanted.first)
                yield from reversed(run(self._stored(replace(wanted, first=first)), CALL_TIMEOUT_S))
                wanted = replace(wanted, last=first - 1)

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
        with contextlib.suppress(EntryAbsentError, NoSuchLedgerError):
            async for each in fetch(cluster, [wanted], self.options):
                numbered = enumerate(each.entries, each.first_entry_id)
                found += (StoredEntry(each.ledger_id, number, entry) for number, entry in numbered)
        return found

    def _writer_schema(self, topic: str, version: bytes) -> SchemaData:
        return run(self._schema(topic, version), CALL_TIMEOUT_S)

    async def _schema(self, topic: str, version: bytes) -> SchemaData:
        cluster = await open_cluster(self.options.cluster)
        return await TopicAdmin(cluster.http).schema(topic_of(topic), version)


freeze_imports()
