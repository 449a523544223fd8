"""The common part of a streaming query's readers, for all releases of Spark.

Threads:   one object on the driver lives as long as the query, in a process of its own: it has the `Follower`. Tasks
           get another one, without its state.
Read next: stream_reader.py (PySpark 4.2 on), stream_reader_before_42.py; following.py
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from pyspark.sql.datasource import DataSourceStreamReader, InputPartition

from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns
from magnetar.spark.loop_thread import run
from magnetar.spark.reading.batch_reader import cores_here
from magnetar.spark.reading.following import PATIENCE_S, Follower, Limit
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.rows import RowReader
from magnetar.spark.reading.stream_offsets import Offset, from_json, to_json
from magnetar.spark.reading.topics import TopicAdmin
from magnetar.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa

T = TypeVar("T")
_CALL_TIMEOUT_S = 2 * PATIENCE_S + 60  # Above the follower's own patience, whose error names the cause.


class StreamReaderBase(DataSourceStreamReader):
    def __init__(self, options: ReadOptions, columns: Columns) -> None:
        self._rows = RowReader(options, columns)
        self._follower: Follower | None = None

    def __getstate__(self) -> dict[str, Any]:
        """Leaves out the follower, which tasks do not need."""
        return {**self.__dict__, "_follower": None}

    def initialOffset(self) -> dict[str, Any]:  # noqa: N802 - Spark's name
        async def work(follower: Follower) -> Offset:
            return await follower.initial()

        return to_json(self._ask(work))

    def partitions(self, start: dict[str, Any], end: dict[str, Any]) -> Sequence[InputPartition]:
        first, last = from_json(start), from_json(end)

        async def work(follower: Follower) -> Sequence[InputPartition]:
            return [InputPartition(split) for split in await follower.plan(first, last)]

        return self._ask(work)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition.value)

    def commit(self, end: dict[str, Any]) -> None:
        async def work(follower: Follower) -> None:
            await follower.commit(from_json(end))

        self._ask(work)

    def stop(self) -> None:
        """Is not called when a query ends well: Spark ends the process."""

        async def work(follower: Follower) -> None:
            follower.close()

        if self._follower is not None:
            self._ask(work)
            self._follower = None

    def _latest(self, start: dict[str, Any], limit: Limit) -> dict[str, Any]:
        async def work(follower: Follower) -> dict[str, Any]:
            offset = from_json(start)
            latest = await follower.latest(offset, limit)
            return start if latest is offset else to_json(latest)

        return self._ask(work)

    def _ask(self, work: Callable[[Follower], Awaitable[T]]) -> T:
        return run(self._with_follower(work), _CALL_TIMEOUT_S)

    async def _with_follower(self, work: Callable[[Follower], Awaitable[T]]) -> T:
        if self._follower is None:
            options = self._rows.options
            cluster = await open_cluster(options.cluster)
            self._follower = Follower(cluster, TopicAdmin(cluster.http), options, cores_here())
        return await work(self._follower)


freeze_imports()
