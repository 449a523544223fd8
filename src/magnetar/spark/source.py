"""MagnetarSource: what `format("magnetar")` is for Spark. Reading is reading/, writing is writing/.

Limits:    Spark imports this module in every worker it starts, also for other sources: readers and writers are imported
           only when they are needed, and their memory is frozen then (`freeze_imports`).
"""

from __future__ import annotations

import gc
import os
from typing import TYPE_CHECKING, Final

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql import datasource
    from pyspark.sql.types import StructType

NAME = "magnetar"


class MagnetarSource(DataSource):
    """Topics as DataFrames. The options are in docs/spark.md."""

    @classmethod
    def name(cls) -> str:
        return NAME

    def schema(self) -> str:
        from magnetar.spark.reading.options import parse_read_options
        from magnetar.spark.reading.readers import all_columns

        return all_columns(parse_read_options(self.options)).ddl

    def reader(self, schema: StructType) -> datasource.DataSourceReader:
        from magnetar.spark.reading.readers import make_reader

        return make_reader(schema, self.options)

    def streamReader(self, schema: StructType) -> datasource.DataSourceStreamReader:  # noqa: N802 - Spark's name
        from magnetar.spark.reading.readers import make_stream_reader

        return make_stream_reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> datasource.DataSourceArrowWriter:
        from magnetar.spark.writing.writers import make_writer

        return make_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> datasource.DataSourceStreamArrowWriter:  # noqa: N802
        from magnetar.spark.writing.writers import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite)


_RUNTIME: Final = "SPARK_PYTHON_RUNTIME"
_WORKER: Final = "PYTHON_WORKER"


def freeze_imports() -> None:
    """Leaves the objects that imports made out of garbage collection. Call it at the end of a module that has imported
    all that tasks need; outside of Spark's workers it does nothing.

    A worker ends every task with a full collection, which walks through them: 55 ms of processor time with pyspark,
    pandas, pyarrow and this package, more than a small task takes.
    """
    if os.environ.get(_RUNTIME) == _WORKER:
        gc.collect()
        gc.freeze()
