"""JSON records as columns: what Arrow's reader takes, and what it does not."""

from __future__ import annotations

import base64
import json
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pytest

from magnetar.errors import MalformedEntryError
from tests.unit.spark.decoding.typed import of_json, read, record

_INNER = {"type": "record", "name": "Inner", "fields": [{"name": "x", "type": ["null", "double"]}]}
PLAIN = record(
    ("flag", "boolean"),
    ("small", ["null", "int"]),
    ("large", "long"),
    ("full", "double"),
    ("text", ["null", "string"]),
    ("names", {"type": "array", "items": "string"}),
    ("inner", _INNER),
)
ROW = {
    "flag": True,
    "small": None,
    "large": -(2**63),
    "full": 0.5,
    "text": 'line\nbreak "quoted" ü 🙂',
    "names": ["a", ""],
    "inner": {"x": 1.5},
}


def _texts(rows: list[dict[str, Any]], **how: Any) -> list[bytes]:
    return [json.dumps(row, **how).encode() for row in rows]


@pytest.mark.parametrize("how", [{}, {"indent": True}, {"ensure_ascii": False, "indent": "\t"}])
def test_records_are_read_as_clients_write_them(how: dict[str, Any]) -> None:
    assert read(of_json(PLAIN), [*_texts([ROW] * 3, **how), None]) == [ROW, ROW, ROW, dict.fromkeys(ROW)]


def test_missing_fields_are_null_and_unknown_ones_are_dropped() -> None:
    values = _texts([{"large": 1, "more": [{"y": 2}]}, {}, {"inner": {}, "text": "x"}])
    empty = dict.fromkeys(ROW)
    assert read(of_json(PLAIN), values) == [
        {**empty, "large": 1},
        empty,
        {**empty, "inner": {"x": None}, "text": "x"},
    ]


def test_values_that_arrows_reader_does_not_take_are_read_all_the_same() -> None:
    odd = [b' {"large": 1}', b'{"large": 2, "large": 3}', b"null", b'{"full": 1}', b'{"text": 5}']
    empty = dict.fromkeys(ROW)
    assert read(of_json(PLAIN), odd) == [
        {**empty, "large": 1},
        {**empty, "large": 3},
        empty,
        {**empty, "full": 1.0},
        {**empty, "text": "5"},
    ]


@pytest.mark.parametrize(
    "broken",
    [b"", b"   ", b"{", b"{}{}", b"[1]", b'{"large": "1"}', b'{"large": 1.5}', b'{"flag": 1}', b'{"small": 3000000000}',
     b'{"names": "a"}', b'{"inner": 1}', b'{"large": true}', b"\xff\xfe"],
)  # fmt: skip
def test_a_value_that_is_not_of_the_schema_names_its_message(broken: bytes) -> None:
    good = json.dumps(ROW).encode()
    with pytest.raises(MalformedEntryError, match=r"message 7:100:2:1 is not of the topic's schema"):
        read(of_json(PLAIN), [good, broken, good])


def test_two_values_in_one_message_do_not_shift_the_rows_behind_them() -> None:
    with pytest.raises(MalformedEntryError, match="message 7:100:2:0 "):
        read(of_json(PLAIN), [b'{"large": 1}\n{"large": 2}', b"  "])


def test_bytes_maps_and_decimals_are_read() -> None:
    definition = record(
        ("blob", "bytes"),
        ("sizes", {"type": "map", "values": "long"}),
        ("price", {"type": "bytes", "logicalType": "decimal", "precision": 8, "scale": 2}),
    )
    rows = [
        {"blob": base64.b64encode(b"\xff\x00").decode(), "sizes": {"a": 1}, "price": 1.5},
        {"blob": "not base64", "sizes": {}, "price": "2.25"},
    ]
    assert read(of_json(definition), _texts(rows)) == [
        {"blob": b"\xff\x00", "sizes": {"a": 1}, "price": Decimal("1.50")},
        {"blob": b"not base64", "sizes": {}, "price": Decimal("2.25")},
    ]


def test_times_are_numbers_in_the_unit_of_the_schema() -> None:
    definition = record(
        ("ms", {"type": "long", "logicalType": "timestamp-millis"}), ("day", {"type": "int", "logicalType": "date"})
    )
    (row,) = read(of_json(definition), _texts([{"ms": 1_700_000_000_123, "day": 1}]))
    assert row == {"ms": datetime(2023, 11, 14, 22, 13, 20, 123_000, UTC), "day": date(1970, 1, 2)}
