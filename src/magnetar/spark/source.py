"""MagnetarSource: what `format("magnetar")` is for Spark. Reading is reading/, writing is writing/.

Limits:    Spark imports this module in every worker it starts, also for other sources: readers and writers are imported
           only when they are needed.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from pyspark.sql.datasource import DataSource

if TYPE_CHECKING:
    from pyspark.sql.datasource import (
        DataSourceArrowWriter,
        DataSourceReader,
        DataSourceStreamArrowWriter,
        DataSourceStreamReader,
    )
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

    def reader(self, schema: StructType) -> DataSourceReader:
        from magnetar.spark.reading.readers import make_reader

        return make_reader(schema, self.options)

    def streamReader(self, schema: StructType) -> DataSourceStreamReader:  # noqa: N802 - Spark's name
        from magnetar.spark.reading.readers import make_stream_reader

        return make_stream_reader(schema, self.options)

    def writer(self, schema: StructType, overwrite: bool) -> DataSourceArrowWriter:
        from magnetar.spark.writing import make_writer

        return make_writer(schema, self.options, overwrite)

    def streamWriter(self, schema: StructType, overwrite: bool) -> DataSourceStreamArrowWriter:  # noqa: N802
        from magnetar.spark.writing import make_stream_writer

        return make_stream_writer(schema, self.options, overwrite)
