"""JSON records as columns: what Arrow's reader takes, and what it does not."""

from __future__ import annotations

import base64
import json
import math
from datetime import UTC, date, datetime
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from magnetar.errors import MalformedEntryError
from magnetar.spark.encoding.layout import plan_layout
from magnetar.spark.encoding.typed_values import json_values, record_definition
from tests.rows import every_row
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


def _decimal(precision: int, scale: int) -> dict[str, Any]:
    return {"type": "bytes", "logicalType": "decimal", "precision": precision, "scale": scale}


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


@every_row(
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


@pytest.mark.parametrize(
    ("precision", "scale", "number"),
    [
        (20, 2, "12345678901234567.89"),
        (18, 1, "99999999999999999.9"),
        (38, 19, "0.1234567890123456789"),
        (38, 18, "12345678901.500000000000000000"),
        (38, 0, "-12345678901234567890123456789012345678"),
        (38, 38, "0.00000000000000000000000000000000000001"),
    ],
)
def test_a_decimal_keeps_every_digit_wherever_it_stands(precision: int, scale: int, number: str) -> None:
    kind = _decimal(precision, scale)
    definition = record(
        ("a", ["null", kind]),
        ("list", {"type": "array", "items": kind}),
        ("map", {"type": "map", "values": kind}),
        ("in", record(("x", kind), name="I")),
    )
    texts = [f'{{"a": {n}, "list": [{n}], "map": {{"k": {n}}}, "in": {{"x": {n}}}}}' for n in (number, f'"{number}"')]
    exact = Decimal(number)
    assert read(of_json(definition), [text.encode() for text in texts]) == [
        {"a": exact, "list": [exact], "map": {"k": exact}, "in": {"x": exact}}
    ] * len(texts)


def test_a_decimal_with_more_fractional_digits_than_the_column_is_rounded_half_to_even() -> None:
    definition = record(("a", _decimal(20, 2)))
    texts = [b'{"a": 12345678901234567.885}', b'{"a": 0.125}', b'{"a": "0.135"}', b'{"a": 1e-999999999}', b'{"a": 1E3}']
    assert [row["a"] for row in read(of_json(definition), texts)] == [
        Decimal("12345678901234567.88"),
        Decimal("0.12"),
        Decimal("0.14"),
        Decimal("0.00"),
        Decimal("1000.00"),
    ]


@pytest.mark.parametrize(
    "number", ["1000", "999.995", "1e999999999", "1e99999999999999999999", "NaN", '"NaN"', '"Infinity"', '"x"', "true"]
)
def test_a_decimal_that_does_not_fit_its_digits_names_its_message(number: str) -> None:
    definition = record(("a", _decimal(5, 2)))
    with pytest.raises(MalformedEntryError, match=r"message 7:100:2:1 is not of the topic's schema: (?!.*<class)"):
        read(of_json(definition), [b'{"a": 999.99}', f'{{"a": {number}}}'.encode()])


def test_other_fields_beside_a_decimal_are_read_as_they_are_without_one() -> None:
    definition = record(("a", _decimal(5, 2)), ("full", "double"), ("text", "string"), ("large", "long"))
    value = b'{"a": 1.25, "full": 0.1, "text": {"x": [0.1]}, "large": 9007199254740993, "more": 0.5}'
    assert read(of_json(definition), [value]) == [
        {"a": Decimal("1.25"), "full": 0.1, "text": '{"x": [0.1]}', "large": 9007199254740993}
    ]
    with pytest.raises(MalformedEntryError, match=r"large is 1\.5, which is no int64"):
        read(of_json(definition), [b'{"a": 1.25, "large": 1.5}'])


@pytest.mark.parametrize("kind", [pa.decimal128(20, 2), pa.decimal128(38, 18), pa.float64(), pa.float32()], ids=str)
def test_what_the_sink_writes_is_read_as_it_was(kind: pa.DataType) -> None:
    numbers: list[Any] = [Decimal("12345678901234567.89"), Decimal("-0.01")]
    if pa.types.is_floating(kind):
        numbers = [1.5, math.inf, -math.inf]
    rows = pa.record_batch({"a": pa.array([*numbers, None], kind)})
    layout = plan_layout(rows.schema, is_typed=True)
    schema = of_json(json.loads(record_definition(layout.fields)))
    assert read(schema, json_values(rows, layout).to_pylist()) == rows.to_pylist()


def test_floats_that_are_no_numbers_in_json_are_strings() -> None:
    definition = record(("a", "float"), ("b", {"type": "map", "values": "double"}))
    nan, infinite = read(
        of_json(definition), [b'{"a": "NaN", "b": {"x": "NaN"}}', b'{"a": "Infinity", "b": {"x": "-Infinity"}}']
    )
    assert math.isnan(nan["a"])
    assert math.isnan(nan["b"]["x"])
    assert infinite == {"a": math.inf, "b": {"x": -math.inf}}
    with pytest.raises(MalformedEntryError, match=r'message 7:100:2:0 .*: a is "1\.5", which is no float'):
        read(of_json(definition), [b'{"a": "1.5"}'])


@pytest.mark.parametrize(
    "broken",
    [b'{"text": "\\ud83d"}', b'{"names": ["\\ude42\\ud83d"]}', b'{"tags": {"\\ud83d": 1}}',
     b'{"tags": {"\\ud83d": "no number"}}'],
)  # fmt: skip
def test_half_of_a_surrogate_pair_names_its_message(broken: bytes) -> None:
    definition = record(
        ("text", "string"), ("names", {"type": "array", "items": "string"}), ("tags", {"type": "map", "values": "long"})
    )
    with pytest.raises(MalformedEntryError, match=r"message 7:100:2:1 is not of the topic's schema") as raised:
        read(of_json(definition), [b'{"text": "\\ud83d\\ude42"}', broken])
    assert str(raised.value).encode()  # The message can be printed.
