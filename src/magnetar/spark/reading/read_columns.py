"""Which columns a read has: the raw ones, or those of the topic's schema; and of them, what the user's schema names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from magnetar.broker.schemas.data import SchemaData
from magnetar.errors import ConfigError, TopicNotFoundError
from magnetar.spark.cluster import open_cluster
from magnetar.spark.decoding import Columns, raw_columns, topic_columns
from magnetar.spark.loop_thread import run
from magnetar.spark.reading.admin import TopicAdmin
from magnetar.spark.reading.options import ReadOptions
from magnetar.spark.reading.rows import CALL_TIMEOUT_S
from magnetar.spark.reading.topics import find_parts

if TYPE_CHECKING:
    import pyarrow as pa


def all_columns(options: ReadOptions) -> Columns:
    """Asks the cluster only for typed ones. TopicNotFoundError, SchemaMissingError."""
    if not options.typed:
        return raw_columns(include_headers=options.include_headers)
    return _typed(run(_schemas(options), CALL_TIMEOUT_S)[0], options)


def chosen_columns(options: ReadOptions, wanted: pa.Schema) -> Columns:
    """ConfigError for a name or a type that there is not.

    A query's columns are those of the schema that the topic had when it was begun. Where the newest one has other
    columns by now, an older version is found that has them.
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
    """Of several topics, the first one's: the others' messages are mapped onto it. The newest first, at least one."""
    cluster = await open_cluster(options.cluster)
    parts = await find_parts(cluster, options.subject)
    if not parts:
        raise TopicNotFoundError(f"there are no {options.subject}, so there is no schema to read them by")
    await cluster.segments(parts[0].name)  # A topic that does not exist says so, and not that it has no schema.
    admin = TopicAdmin(cluster.http)
    newest = await admin.schema(parts[0].topic)
    return [newest, *(await admin.schemas(parts[0].topic))[1:]]
