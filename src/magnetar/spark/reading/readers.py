"""The readers that Spark calls, one for a batch query, one for a streaming query; made of the schema that it wants and
the options.

Order:     the columns of a read are the raw ones, or those of the topic's schema; and of them, those of the user's
           schema. A batch query is planned once: a DataFrame is a snapshot of the topic.
Threads:   one `StreamReader` on the driver lives as long as the query, in a process of its own: it has the `Follower`.
           Tasks get another one, without its state.
Read next: rows.py (tasks), resolve_offsets.py (plans of batches), following.py (plans of streams)
"""

from __future__ import annotations

import os
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, TypeVar

from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader, InputPartition
from pyspark.sql.streaming.datasource import (
    ReadAllAvailable,
    ReadLimit,
    ReadMaxBytes,
    ReadMaxRows,
    SupportsTriggerAvailableNow,
)

from magnetar.errors import ConfigError, TopicNotFoundError
from magnetar.runtime.system import SystemEntropy
from magnetar.schemas.data import SchemaData
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns, raw_columns, topic_columns
from magnetar.spark.loop_thread import run
from magnetar.spark.reading.following import PATIENCE_S, Follower, Limit
from magnetar.spark.reading.options import ReadOptions, parse_read_options, require_batch, require_stream
from magnetar.spark.reading.ranges import Split
from magnetar.spark.reading.resolve_offsets import plan_batch, times_of
from magnetar.spark.reading.rows import CALL_TIMEOUT_S, RowReader
from magnetar.spark.reading.stream_offsets import from_json, to_json
from magnetar.spark.reading.topics import TopicAdmin, find_parts
from magnetar.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

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


# --- columns ----------------------------------------------------------------------------------------------------------


def _columns(schema: StructType, options: ReadOptions) -> Columns:
    from pyspark.sql.pandas.types import to_arrow_schema

    return chosen_columns(options, to_arrow_schema(schema, timezone="UTC"))


def all_columns(options: ReadOptions) -> Columns:
    """Asks the cluster only for typed ones. Raises TopicNotFoundError, SchemaMissingError."""
    if not options.typed:
        return raw_columns(include_headers=options.include_headers)
    return _typed(run(_schemas(options), CALL_TIMEOUT_S)[0], options)


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
            return _typed(schema, options).select(wanted)
        except ConfigError as error:
            first_error = first_error or error
    assert first_error is not None
    raise first_error


def _typed(schema: SchemaData, options: ReadOptions) -> Columns:
    return topic_columns(schema, include_headers=options.include_headers)


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


freeze_imports()
