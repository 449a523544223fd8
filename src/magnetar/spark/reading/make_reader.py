"""Makes readers from Spark's arguments: the wanted schema, and the options.

The columns of a read are the raw ones, or those of the topic's schema; and of them, those of the user's schema.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from magnetar.errors import ConfigError, TopicNotFoundError
from magnetar.schemas.data import SchemaData
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding.columns import Columns, raw_columns, topic_columns
from magnetar.spark.loop_thread import run
from magnetar.spark.reading.options import ReadOptions, parse_read_options, require_batch, require_stream
from magnetar.spark.reading.rows import CALL_TIMEOUT_S
from magnetar.spark.reading.topics import TopicAdmin, find_parts

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.datasource import DataSourceReader, DataSourceStreamReader
    from pyspark.sql.types import StructType

    from magnetar.spark.decoding.columns import Columns


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


def make_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceReader:
    """Makes the reader for `DataSource.reader`. Raises ConfigError, TopicNotFoundError."""
    from magnetar.spark.reading.batch_reader import BatchReader

    require_batch(options)
    parsed = parse_read_options(options)
    return BatchReader(parsed, _columns(schema, parsed))


def make_stream_reader(schema: StructType, options: Mapping[str, str]) -> DataSourceStreamReader:
    """Makes the reader for `DataSource.streamReader`, in the shape that the installed release calls."""
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
