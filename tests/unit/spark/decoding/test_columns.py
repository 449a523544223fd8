"""Names, types and choice of columns; the types are those that Spark itself makes of the DDL's words."""

from __future__ import annotations

import pickle

import pyarrow as pa
import pytest

from magnetar.errors import ConfigError
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.spark.decoding.columns import ddl_of, raw_columns, topic_columns
from tests.unit.spark.decoding.test_avro_values import EVERYTHING
from tests.unit.spark.decoding.typed import avro, record


def test_the_raw_columns_have_their_names_and_types() -> None:
    assert raw_columns(include_headers=True).ddl == (
        "`key` BINARY, `value` BINARY, `topic` STRING, `partition` INT, `message_id` STRING, `index` BIGINT, "
        "`publish_time` TIMESTAMP, `event_time` TIMESTAMP, `producer` STRING, `sequence_id` BIGINT, "
        "`properties` MAP<STRING, STRING>, `redelivery_count` INT"
    )
    assert "properties" not in raw_columns(include_headers=False).names


def test_the_types_are_those_that_spark_expects() -> None:
    types = pytest.importorskip("pyspark.sql.types")
    arrow = pytest.importorskip("pyspark.sql.pandas.types")
    text = types.StringType()
    expected = {
        "topic": text,
        "properties": types.MapType(text, text),
        "publish_time": types.TimestampType(),
        "value": types.BinaryType(),
        "partition": types.IntegerType(),
    }
    everything = raw_columns(include_headers=True).arrow
    for name, kind in expected.items():
        assert arrow.to_arrow_type(kind, timezone="UTC") == everything.field(name).type
    typed = topic_columns(avro(EVERYTHING), include_headers=False).arrow
    inner = types.StructType([types.StructField("x", types.DoubleType())])
    nested = types.ArrayType(types.ArrayType(types.LongType()))
    for name, kind in {"grid": nested, "things": types.MapType(text, inner), "inner": inner}.items():
        assert arrow.to_arrow_type(kind, timezone="UTC") == typed.field(name).type


def test_a_choice_of_columns_keeps_its_order() -> None:
    everything = raw_columns(include_headers=True)
    chosen = everything.select(pa.schema([("topic", pa.string()), ("key", pa.binary())]))
    assert chosen.names == ["topic", "key"]


def test_a_column_that_is_not_there_is_refused_with_the_nearest() -> None:
    with pytest.raises(ConfigError, match="no column 'messageId' to read, did you mean 'message_id'"):
        raw_columns(include_headers=True).select(pa.schema([("messageId", pa.string())]))


def test_a_column_of_another_type_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'value' is BINARY and cannot be read as string.*cast"):
        raw_columns(include_headers=True).select(pa.schema([("value", pa.string())]))


def test_a_field_with_the_name_of_a_metadata_column_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"__topic.*valueSchema=raw"):
        topic_columns(avro(record(("__topic", "int"))), include_headers=False)


def test_columns_travel_between_processes() -> None:
    columns = topic_columns(avro(EVERYTHING), include_headers=True)
    assert pickle.loads(pickle.dumps(columns)) == columns


def test_names_are_quoted_in_ddl() -> None:
    assert ddl_of(pa.struct([("a`b", pa.int8())])) == "STRUCT<`a``b`: TINYINT>"


def test_a_schema_of_a_clients_own_has_no_columns() -> None:
    with pytest.raises(Exception, match="AUTO_CONSUME have no columns"):
        topic_columns(SchemaData(SchemaType.AUTO_CONSUME, b""), include_headers=False)
