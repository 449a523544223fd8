"""Reads JSON values into Arrow: by Arrow's own reader where it can, otherwise by Python's.

Order:     fast: values that all begin with a brace are joined to lines and read at once; line breaks inside a value are
           only ever white space. Fields that the schema lacks are ignored, missing ones are null.
           slow: bytes, maps and decimals, which Arrow reads from other forms, and everything that the fast reader
           refuses: the result is the value or an error with its row.
Format:    Java's clients write bytes as base64, Python's as text: if it is not base64, it is taken as text. Decimals
           are read from their text, never through a float, which has 16 digits. Floats that are not numbers in JSON are
           strings, as the sink and Java's clients write them: "NaN", "Infinity".
"""

from __future__ import annotations

import base64
import binascii
import decimal
import json
from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import json as arrow_json

from magnetar.spark.decoding.primitive_values import UnreadableValueError, data_of, edges, rounded, spread

_BRACE: Final = ord("{")
_LINE_BREAKS: Final = (ord("\n"), ord("\r"))
_NOT_FAST: Final = (pa.types.is_binary, pa.types.is_map, pa.types.is_decimal)
_EXACT: Final = json.JSONDecoder(parse_float=decimal.Decimal)
_NO_NUMBERS: Final = ("NaN", "Infinity", "-Infinity")
_MISFITS: Final = (pa.ArrowInvalid, pa.ArrowTypeError, OverflowError, UnicodeEncodeError)
"""Arrow's errors for values that are not of the type; the last one for half of a surrogate pair."""


def read_json(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    """Returns values of `kind`, which has timestamps in the unit that they are written in; null where they are null."""
    is_plain = not any(is_kind(part) for part in _parts(kind) for is_kind in _NOT_FAST)
    if pa.types.is_struct(kind) and kind.num_fields and is_plain:
        found = _read_fast(values, kind)
        if found is not None:
            return found
    return _read_slowly(values, kind)


def _parts(kind: pa.DataType) -> Iterator[pa.DataType]:
    """Yields the type and all types inside it, but the texts of a map's keys."""
    yield kind
    if pa.types.is_struct(kind):
        for field in kind:
            yield from _parts(field.type)
    elif pa.types.is_list(kind) or pa.types.is_map(kind):
        yield from _parts(kind.value_type if pa.types.is_list(kind) else kind.item_type)


def _numeric(kind: pa.DataType) -> pa.DataType:
    """Returns the type with numbers for times, as JSON has them."""
    if pa.types.is_struct(kind):
        return pa.struct([pa.field(field.name, _numeric(field.type)) for field in kind])
    if pa.types.is_list(kind):
        return pa.list_(pa.field("element", _numeric(kind.value_type)))
    if pa.types.is_timestamp(kind):
        return pa.int64()
    return pa.int32() if pa.types.is_date32(kind) else kind


def _read_fast(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array | None:
    present = values.drop_null()
    if not len(present):
        return pa.nulls(len(values), kind)
    lines = _lines(present)
    if lines is None:
        return None
    fields = pa.schema(list(_numeric(kind)))
    options = arrow_json.ParseOptions(explicit_schema=fields, unexpected_field_behavior="ignore")
    reading = arrow_json.ReadOptions(use_threads=False, block_size=lines.size + 1)
    try:
        table = arrow_json.read_json(pa.BufferReader(lines), reading, options)
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    if table.num_rows != len(present):
        return None
    found = table.to_struct_array().combine_chunks()
    found = (found.chunk(0) if isinstance(found, pa.ChunkedArray) else found).cast(kind)
    return spread(found, values.is_valid().to_numpy(zero_copy_only=False))


def _lines(values: pa.BinaryArray) -> pa.Buffer | None:
    """Returns one value a line; None if one does not begin with a brace, so that its lines are unclear."""
    places = edges(values)
    data = data_of(values)[places[0] : places[-1]].copy()
    if not data.size or (np.diff(places) == 0).any() or (data[places[:-1] - places[0]] != _BRACE).any():
        return None
    for line_break in _LINE_BREAKS:
        data[data == line_break] = ord(" ")
    offsets = (places - places[0]).astype(np.int32)
    flat = pa.Array.from_buffers(pa.binary(), len(values), [None, pa.py_buffer(offsets), pa.py_buffer(data)])
    return pc.binary_join_element_wise(flat, pa.scalar(b"\n"), b"").buffers()[2]


def _read_slowly(values: pa.BinaryArray, kind: pa.DataType) -> pa.Array:
    found: list[Any] = []
    parse = _parse_exactly if any(map(pa.types.is_decimal, _parts(kind))) else json.loads
    for row, value in enumerate(values.to_pylist()):
        try:
            found.append(None if value is None else _taken(parse(value), kind, ""))
        except (ValueError, RecursionError, ArithmeticError) as error:
            raise _unreadable(row, error) from None
    try:
        return pa.array(found, kind)
    except _MISFITS:
        return _find_culprit(found, kind)


def _parse_exactly(value: bytes) -> Any:
    """As `json.loads`, with decimals for floats: that would make a decoder for every value, which takes twice the
    time."""
    return _EXACT.decode(value.decode(json.detect_encoding(value), "surrogatepass"))


def _find_culprit(found: list[Any], kind: pa.DataType) -> pa.Array:
    for row, value in enumerate(found):
        try:
            pa.array([value], kind)
        except _MISFITS as error:
            raise _unreadable(row, error) from None
    raise AssertionError("values that fit one by one fit together")


def _unreadable(row: int, error: Exception) -> UnreadableValueError:
    what = str(error) if not isinstance(error, decimal.DecimalException) else "it has a number beyond all bounds"
    printable = what.encode("utf-8", "backslashreplace").decode()  # It may contain parts of the value.
    return UnreadableValueError(row, f"it is not JSON of the topic's schema: {printable}")


def _taken(value: Any, kind: pa.DataType, where: str) -> Any:
    """Returns the value as Arrow takes it for the type. ValueError names the misfit and its place."""
    if value is None:
        return None
    if pa.types.is_struct(kind):
        _require(value, dict, kind, where)
        return {field.name: _taken(value.get(field.name), field.type, f"{where}.{field.name}") for field in kind}
    if pa.types.is_list(kind):
        _require(value, list, kind, where)
        return [_taken(each, kind.value_type, f"{where}[]") for each in value]
    if pa.types.is_map(kind):
        _require(value, dict, kind, where)
        return [(name, _taken(each, kind.item_type, f"{where}.{name}")) for name, each in value.items()]
    return _leaf(value, kind, where)


def _leaf(value: Any, kind: pa.DataType, where: str) -> Any:
    if pa.types.is_string(kind):
        return value if isinstance(value, str) else _text(value)  # Python's client writes an enum's own values.
    if pa.types.is_binary(kind):
        return _bytes(value, kind, where)
    if pa.types.is_boolean(kind):
        _require(value, bool, kind, where)
        return value
    if pa.types.is_decimal(kind):
        return _decimal(value, kind, where)
    if pa.types.is_floating(kind):
        if value not in _NO_NUMBERS:
            _require(value, (int, float, decimal.Decimal), kind, where)
        return float(value)
    _require(value, int, kind, where)
    return value


def _decimal(value: Any, kind: pa.DataType, where: str) -> decimal.Decimal:
    try:
        number = rounded(decimal.Decimal(str(value)), kind)
    except decimal.InvalidOperation:
        raise _misfit(value, kind, where) from None
    if not number.is_finite():
        raise _misfit(value, kind, where)
    return number


def _bytes(value: Any, kind: pa.DataType, where: str) -> bytes:
    _require(value, str, kind, where)
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, ValueError):
        return str(value).encode("utf-8", "surrogatepass")


def _require(value: Any, types: type | tuple[type, ...], kind: pa.DataType, where: str) -> None:
    is_right = isinstance(value, types) and (isinstance(value, bool) <= (types is bool))
    if not is_right:
        raise _misfit(value, kind, where)


def _misfit(value: Any, kind: pa.DataType, where: str) -> ValueError:
    return ValueError(f"{where.lstrip('.') or 'value'} is {_text(value)[:100]}, which is no {kind}")


def _text(value: Any) -> str:
    return json.dumps(value, default=float)  # With decimals, every number with a point was read as one.
