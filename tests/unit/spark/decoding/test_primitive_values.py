"""Topics of primitive schemas and of pairs, as columns."""

from __future__ import annotations

import json
import struct
from datetime import UTC, date, datetime, timedelta
from typing import Any

import pytest

from magnetar.errors import MalformedEntryError
from magnetar.schemas.data import SchemaData, SchemaType
from magnetar.spark.decoding.columns import topic_columns
from tests.rows import every_row
from tests.unit.spark.decoding.stored import Sent
from tests.unit.spark.decoding.typed import avro_bytes, read, read_messages, record

_MOMENT = datetime(2026, 1, 2, 3, 4, 5, 6000, UTC)
_MS = int(_MOMENT.timestamp() * 1000)
_NS_OF_DAY = ((3 * 60 + 4) * 60 + 5) * 10**9 + 6_007_008
_DAYS = (date(2026, 1, 2) - date(1970, 1, 1)).days
_BEFORE_1970 = datetime(1969, 12, 31, 23, 59, 59, 999_999, UTC)
_LOCAL = _MOMENT.replace(tzinfo=None) + timedelta(microseconds=7)
CASES: list[tuple[SchemaType, str, list[tuple[bytes, Any]]]] = [
    (SchemaType.BYTES, "BINARY", [(b"\xff", b"\xff"), (b"", b"")]),
    (SchemaType.NONE, "BINARY", [(b"x", b"x")]),
    (SchemaType.STRING, "STRING", [("ü".encode(), "ü"), (b"", ""), (b"\xff", "\ufffd")]),
    (SchemaType.BOOLEAN, "BOOLEAN", [(b"\x01", True), (b"\x00", False)]),
    (SchemaType.INT8, "TINYINT", [(b"\xff", -1), (b"\x7f", 127)]),
    (SchemaType.INT16, "SMALLINT", [(struct.pack(">h", -300), -300)]),
    (SchemaType.INT32, "INT", [(struct.pack(">i", -70_000), -70_000), (struct.pack(">i", 5), 5)]),
    (SchemaType.INT64, "BIGINT", [(struct.pack(">q", -(2**63)), -(2**63))]),
    (SchemaType.FLOAT, "FLOAT", [(struct.pack(">f", 1.5), 1.5)]),
    (SchemaType.DOUBLE, "DOUBLE", [(struct.pack(">d", -0.1), -0.1)]),
    (SchemaType.DATE, "TIMESTAMP", [(struct.pack(">q", _MS), _MOMENT)]),
    (SchemaType.TIME, "TIMESTAMP", [(struct.pack(">q", 5), datetime(1970, 1, 1, 0, 0, 0, 5000, UTC))]),
    (SchemaType.TIMESTAMP, "TIMESTAMP", [(struct.pack(">q", -1), datetime(1969, 12, 31, 23, 59, 59, 999_000, UTC))]),
    (SchemaType.INSTANT, "TIMESTAMP", [(struct.pack(">qi", -1, 999_999_999), _BEFORE_1970)]),
    (SchemaType.LOCAL_DATE, "DATE", [(struct.pack(">q", _DAYS), date(2026, 1, 2))]),
    (SchemaType.LOCAL_TIME, "BIGINT", [(struct.pack(">q", _NS_OF_DAY), _NS_OF_DAY)]),
    (SchemaType.LOCAL_DATE_TIME, "TIMESTAMP_NTZ", [(struct.pack(">qq", _DAYS, _NS_OF_DAY), _LOCAL)]),
    (SchemaType.PROTOBUF_NATIVE, "BINARY", [(b"\x08\x01", b"\x08\x01")]),
]  # fmt: skip


@every_row(("kind", "ddl", "cases"), CASES, ids=[case[0].name for case in CASES])
def test_a_primitive_is_one_column_of_its_type(kind: SchemaType, ddl: str, cases: list[tuple[bytes, Any]]) -> None:
    schema = SchemaData(kind, b"")
    assert topic_columns(schema, include_headers=False).ddl.startswith(f"`value` {ddl}, `__key` BINARY, ")
    written = [None, *[value for value, _ in cases], None]
    assert [row["value"] for row in read(schema, written)] == [None, *[expected for _, expected in cases], None]


def test_a_number_of_the_wrong_size_names_its_message() -> None:
    with pytest.raises(MalformedEntryError, match=r"7:100:2:2 is not of the topic's schema: it has 3 bytes.* 4;"):
        read(SchemaData(SchemaType.INT32, b""), [b"\0\0\0\1", None, b"abc"])


# --- pairs ------------------------------------------------------------------------------------------------------------

_VALUE = record(("a", "string"), ("b", ["null", "long"]))


def _pair(key: SchemaType, value: SchemaType, definition: bytes, encoding: str) -> SchemaData:
    data = struct.pack(">i", 0) + struct.pack(">i", len(definition)) + definition
    properties = {"key.schema.type": key.name, "value.schema.type": value.name, "kv.encoding.type": encoding}
    return SchemaData(SchemaType.KEY_VALUE, data, properties)


def _inline(key: bytes | None, value: bytes | None) -> bytes:
    parts = [struct.pack(">i", -1 if each is None else len(each)) + (each or b"") for each in (key, value)]
    return b"".join(parts)


def test_both_parts_of_an_inline_pair_are_columns() -> None:
    schema = _pair(SchemaType.INT32, SchemaType.AVRO, json.dumps(_VALUE).encode(), "INLINE")
    columns = topic_columns(schema, include_headers=False)
    assert columns.ddl.startswith("`key` INT, `value` STRUCT<`a`: STRING, `b`: BIGINT>, `__key` BINARY")
    value = avro_bytes(_VALUE, {"a": "x", "b": None})
    number = struct.pack(">i", 5)
    written = [_inline(number, value), _inline(None, value), None, _inline(number, None)]
    assert read(schema, written) == [
        {"key": 5, "value": {"a": "x", "b": None}},
        {"key": None, "value": {"a": "x", "b": None}},
        {"key": None, "value": None},
        {"key": 5, "value": None},
    ]


def test_the_key_of_a_separated_pair_is_the_messages_key() -> None:
    schema = _pair(SchemaType.STRING, SchemaType.INT64, b"", "SEPARATED")
    number = struct.pack(">q", 7)
    messages = [Sent(number, b"text"), Sent(None, b"gone"), Sent(number)]
    assert read_messages(schema, messages) == [
        {"key": "text", "value": 7},
        {"key": "gone", "value": None},
        {"key": None, "value": 7},
    ]


@pytest.mark.parametrize("broken", [b"", b"\0\0\0\5abc", b"\0\0\0\0\0\0", b"\0\0\0\1a\0\0\0\2b"])
def test_a_pair_that_ends_too_early_names_its_message(broken: bytes) -> None:
    schema = _pair(SchemaType.BYTES, SchemaType.BYTES, b"", "INLINE")
    with pytest.raises(MalformedEntryError, match="7:100:2:1 is not of the topic's schema"):
        read(schema, [_inline(b"k", b"v"), broken])
