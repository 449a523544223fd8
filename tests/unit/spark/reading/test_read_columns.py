"""Typed columns of a query that was begun before the topic's schema changed."""

from __future__ import annotations

import json

import pyarrow as pa
import pytest

from magnetar.errors import ConfigError
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.spark.reading import readers
from magnetar.spark.reading.readers import all_columns, chosen_columns
from tests.unit.spark.reading.topic_world import options


def record(**fields: str) -> SchemaData:
    avro = {"type": "record", "name": "r", "fields": [{"name": name, "type": kind} for name, kind in fields.items()]}
    return SchemaData(SchemaType.AVRO, json.dumps(avro).encode())


@pytest.fixture(autouse=True)
def _versions(monkeypatch: pytest.MonkeyPatch) -> None:
    async def schemas(_: object) -> list[SchemaData]:
        return [record(name="string", added="long"), record(name="string", removed="int")]

    monkeypatch.setattr(readers, "_schemas", schemas)


def test_a_new_query_has_the_columns_of_the_newest_version() -> None:
    assert all_columns(options(valueSchema="topic")).names[:3] == ["name", "added", "__key"]


def test_a_query_that_was_begun_before_keeps_its_columns() -> None:
    wanted = pa.schema([("removed", pa.int32()), ("name", pa.string())])
    assert chosen_columns(options(valueSchema="topic"), wanted).names == ["removed", "name"]


def test_what_no_version_has_is_refused_by_the_newest() -> None:
    with pytest.raises(ConfigError, match="added"):
        chosen_columns(options(valueSchema="topic"), pa.schema([("ad", pa.int64())]))
