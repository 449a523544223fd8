"""Readers from what Spark gives: the schema it is to have, and the options."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from magnetar.spark.reading.options import ReadOptions, parse_read_options, require_batch, require_stream
from magnetar.spark.reading.read_columns import chosen_columns

if TYPE_CHECKING:
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from magnetar.spark.decoding import Columns


def make_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """For `DataSource.reader`. ConfigError, TopicNotFoundError."""
    from magnetar.spark.reading.batch_reader import BatchReader

    require_batch(options)
    parsed = parse_read_options(options)
    return BatchReader(parsed, _columns(schema, parsed))


def make_stream_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamReader:
    """For `DataSource.streamReader`, in the shape that the installed release calls."""
    try:
        from magnetar.spark.reading.stream_reader import StreamReader as Reader
    except ImportError:  # Limits came with PySpark 4.2.
        from magnetar.spark.reading.stream_reader_before_42 import (  # type: ignore[assignment]
            StreamReaderBefore42 as Reader,
        )

    require_stream(options)
    parsed = parse_read_options(options)
    return Reader(parsed, _columns(schema, parsed))


def _columns(schema: StructType, options: ReadOptions) -> Columns:
    from pyspark.sql.pandas.types import to_arrow_schema

    return chosen_columns(options, to_arrow_schema(schema, timezone="UTC"))
