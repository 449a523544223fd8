"""Which columns become which part of a message, and which are refused."""

from __future__ import annotations

import pyarrow as pa
import pytest

from magnetar.errors import ConfigError
from magnetar.spark.encoding.layout import plan_layout

TIME = pa.timestamp("us", tz="UTC")


def test_columns_of_the_source_are_taken_as_they_come() -> None:
    schema = pa.schema(
        [
            ("key", pa.binary()),
            ("value", pa.binary()),
            ("topic", pa.string()),
            ("partition", pa.int32()),
            ("message_id", pa.string()),
            ("index", pa.int64()),
            ("publish_time", TIME),
            ("event_time", TIME),
            ("producer", pa.string()),
            ("sequence_id", pa.int64()),
            ("properties", pa.map_(pa.string(), pa.string())),
            ("redelivery_count", pa.int32()),
        ]
    )

    layout = plan_layout(schema, is_typed=False)

    assert (layout.value, layout.key, layout.topic, layout.partition) == ("value", "key", "topic", "partition")
    assert (layout.event_time, layout.properties) == ("event_time", "properties")


def test_with_a_schema_other_columns_are_fields() -> None:
    layout = plan_layout(pa.schema([("key", pa.string()), ("id", pa.int64()), ("name", pa.string())]), is_typed=True)

    assert (layout.key, layout.fields.names) == ("key", ["id", "name"])


def test_with_prefixed_columns_plain_names_are_fields() -> None:
    schema = pa.schema([("key", pa.string()), ("__key", pa.binary()), ("__index", pa.int64()), ("__event_time", TIME)])

    layout = plan_layout(schema, is_typed=True)

    assert (layout.key, layout.event_time, layout.fields.names) == ("__key", "__event_time", ["key"])


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"id": pa.int64()}, "no column value. They have id: "),
        ({"key": pa.string(), "topic": pa.string()}, "no column value. They have key, topic: "),
        ({"value": pa.int64()}, "cast it"),
        ({"value": pa.binary(), "kye": pa.string()}, "did you mean 'key'"),
        ({"value": pa.binary(), "key": pa.int32()}, "binary or string"),
        ({"value": pa.binary(), "event_time": pa.string()}, "timestamp"),
        ({"value": pa.binary(), "properties": pa.string()}, "map<string,string>"),
        ({"value": pa.binary(), "partition": pa.string()}, "int"),
        (
            {"value": pa.binary(), "properties": pa.map_(pa.string(), pa.string()), "headers": pa.string()},
            "drop one",
        ),
    ],
)
def test_columns_that_fit_no_message_are_refused(columns: dict[str, pa.DataType], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        plan_layout(pa.schema(list(columns.items())), is_typed=False)


def test_a_schema_without_fields_is_refused() -> None:
    with pytest.raises(ConfigError, match="no column is left"):
        plan_layout(pa.schema([("key", pa.string())]), is_typed=True)
