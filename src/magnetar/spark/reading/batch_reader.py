"""The reader that Spark calls for a batch query. Planned once: a DataFrame is a snapshot of the topic."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSourceReader, InputPartition

from magnetar.runtime.system import SystemEntropy
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns
from magnetar.spark.loop_thread import run
from magnetar.spark.reading.batch_plan import plan_batch, times_of
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.ranges import Split
from magnetar.spark.reading.rows import CALL_TIMEOUT_S, RowReader
from magnetar.spark.worker_memory import freeze_imports

if TYPE_CHECKING:
    import pyarrow as pa


def cores_here() -> int:
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
        return await plan_batch(cluster, options, cores=cores_here(), times=self._rows.times)

    def read(self, partition: InputPartition) -> Iterator[pa.RecordBatch]:
        return self._rows.rows(partition.value)


freeze_imports()
