"""Rows of typed columns as Avro records or JSON objects, a column at a time, and the schema that describes both.

Format:    the schema is an Avro record, for Pulsar's AVRO and JSON alike, with types as in Spark's own Avro sink: dates
           are days, timestamps microseconds, decimals bytes, each with its logical type; a column that may be null is a
           union with null, whose default is null. Names are Avro's: letters, digits and underscores. A record inside is
           named after its path.
           Avro: the fields one after the other, without names; int and long are zigzag varints, texts and bytes have
           their length before them, lists and maps are one block with its count and a zero. A field that may be null
           has the branch of its union before it: null is the first.
           JSON: bytes are base64, as in Java's JSON. Floats that are not numbers in JSON are strings: "NaN",
           "Infinity". Null is null.
"""

from __future__ import annotations

import base64
import json
import re
from typing import Any, Final

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from magnetar.errors import ConfigError
from magnetar.spark.encoding.arrays import (
    BinaryArray,
    as_binary,
    data_of,
    fixed_width,
    flags,
    group,
    is_null,
    items_of,
    join,
    lengths_of,
    offsets_of,
    pairs_of,
    repeated,
    where,
    without_nulls,
    zigzag,
)
from magnetar.spark.encoding.layout import Layout

ROOT_NAME: Final = "record"
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
_PLAIN: Final[list[tuple[Any, Any]]] = [
    (types.is_boolean, "boolean"),
    (types.is_int8, "int"),
    (types.is_int16, "int"),
    (types.is_int32, "int"),
    (types.is_int64, "long"),
    (types.is_float32, "float"),
    (types.is_float64, "double"),
    (types.is_string, "string"),
    (types.is_large_string, "string"),
    (types.is_binary, "bytes"),
    (types.is_large_binary, "bytes"),
    (types.is_date32, {"type": "int", "logicalType": "date"}),
]
_VALUE_BRANCH = 2  # Zigzag of 1.
_DECIMAL_BYTES = 16
_DECIMAL_LENGTH = b"\x20"  # Zigzag of 16.
_CONTROL = [chr(code) for code in range(0x20)]
_NO_NUMBERS = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def record_definition(fields: pa.Schema) -> str:
    """Returns the Avro definition as JSON. Raises ConfigError for a name or a type without one."""
    return json.dumps(_record(list(fields), ROOT_NAME), separators=(",", ":"))


def _record(fields: list[pa.Field], name: str) -> dict[str, Any]:
    return {"type": "record", "name": name, "fields": [_field(each, name) for each in fields]}


def _field(field: pa.Field, path: str) -> dict[str, Any]:
    if not _NAME.fullmatch(field.name):
        raise ConfigError(
            f"column {field.name!r} cannot be a field of a schema: rename it to letters, digits and underscores"
        )
    kind = _nullable(field, f"{path}_{field.name}")
    return {"name": field.name, "type": kind, "default": None} if field.nullable else {"name": field.name, "type": kind}


def _nullable(field: pa.Field, path: str) -> Any:
    kind = _type(field.type, path)
    return ["null", kind] if field.nullable else kind


def _type(kind: pa.DataType, path: str) -> Any:
    for is_kind, definition in _PLAIN:
        if is_kind(kind):
            return definition
    if types.is_timestamp(kind):
        return {"type": "long", "logicalType": "timestamp-micros" if kind.tz else "local-timestamp-micros"}
    if types.is_decimal128(kind):
        return {"type": "bytes", "logicalType": "decimal", "precision": kind.precision, "scale": kind.scale}
    return _nested(kind, path)


def _nested(kind: pa.DataType, path: str) -> Any:
    if types.is_struct(kind):
        return _record([kind.field(at) for at in range(kind.num_fields)], path)
    if types.is_list(kind):
        return {"type": "array", "items": _nullable(kind.value_field, path)}
    if types.is_map(kind) and types.is_string(kind.key_type):
        return {"type": "map", "values": _nullable(kind.item_field, path)}
    raise ConfigError(
        f"a column of type {kind} cannot be a field of a schema (at {path}): cast it, for example to string"
    )


# --- Avro -------------------------------------------------------------------------------------------------------------


def avro_values(batch: pa.RecordBatch, layout: Layout) -> BinaryArray:
    return _joined([_avro(batch.column(field.name), field) for field in layout.fields], batch.num_rows)


def _joined(parts: list[BinaryArray], rows: int) -> BinaryArray:
    return join(*parts) if parts else repeated(b"", rows)


def _avro(column: pa.Array, field: pa.Field) -> BinaryArray:
    """Encodes without nulls: a null is a branch. In a field that must not be null, it means that its parent is null."""
    body = _avro_body(column, field.type)
    if not field.nullable:
        return body
    there = ~is_null(column)
    branches = fixed_width((there * _VALUE_BRANCH).astype(np.uint8).reshape(-1, 1))
    return join(branches, where(body, there))


def _avro_body(column: pa.Array, kind: pa.DataType) -> BinaryArray:
    """Encodes values; a null may become any bytes."""
    if types.is_boolean(kind):
        return fixed_width(_numbers(column.cast(pa.uint8()), "u1").view(np.uint8).reshape(-1, 1))
    if types.is_integer(kind) or types.is_date32(kind) or types.is_timestamp(kind):
        return zigzag(_numbers(_without_time(column, kind), "i8"))
    if types.is_floating(kind):
        width = kind.bit_width // 8
        return fixed_width(_numbers(column, f"<f{width}").view(np.uint8).reshape(-1, width))
    if types.is_decimal128(kind):
        return _decimals(column)
    if types.is_struct(kind):
        fields = [kind.field(at) for at in range(kind.num_fields)]
        return _joined([_avro(*each) for each in zip(column.flatten(), fields, strict=True)], len(column))
    if types.is_list(kind):
        items, offsets = items_of(column)
        return _block(_avro(items, kind.value_field), offsets)
    if types.is_map(kind):
        keys, values, offsets = pairs_of(column)
        return _block(join(_text(keys), _avro(values, kind.item_field)), offsets)
    return _text(column)


def _numbers(column: pa.Array, kind: str) -> npt.NDArray[Any]:
    return np.ascontiguousarray(column.fill_null(0).to_numpy(zero_copy_only=False).astype(kind, copy=False))


def _without_time(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """Returns dates as days, times as microseconds."""
    if types.is_date32(kind):
        return column.cast(pa.int32())
    return column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64()) if types.is_timestamp(kind) else column


def _text(column: pa.Array) -> BinaryArray:
    text = without_nulls(as_binary(column))
    return join(zigzag(lengths_of(text)), text)


def _decimals(column: pa.Array) -> BinaryArray:
    """Encodes two's complement, highest byte first, sixteen of them: longer than needed is allowed."""
    filled = pc.fill_null(column, pa.scalar(0, column.type))
    start = filled.offset * _DECIMAL_BYTES
    raw = np.frombuffer(filled.buffers()[1], np.uint8)[start : start + len(filled) * _DECIMAL_BYTES]
    digits = fixed_width(raw.reshape(-1, _DECIMAL_BYTES)[:, ::-1])
    return join(repeated(_DECIMAL_LENGTH, len(filled)), digits)


def _block(items: BinaryArray, offsets: npt.NDArray[np.int64]) -> BinaryArray:
    counts = np.diff(offsets)
    return join(where(zigzag(counts), counts > 0), group(items, offsets), repeated(b"\x00", len(counts)))


# --- JSON -------------------------------------------------------------------------------------------------------------


def json_values(batch: pa.RecordBatch, layout: Layout) -> BinaryArray:
    return _object([(field.name, batch.column(field.name)) for field in layout.fields], batch.num_rows)


def _object(members: list[tuple[str, pa.Array]], rows: int) -> BinaryArray:
    parts: list[BinaryArray] = []
    for number, (name, column) in enumerate(members):
        opening = "," if number else "{"
        parts += [repeated(f"{opening}{json.dumps(name, ensure_ascii=False)}:".encode(), rows), _json(column)]
    return join(*parts, repeated(b"}" if parts else b"{}", rows))


def _json(column: pa.Array) -> BinaryArray:
    body = _json_body(column)
    if not column.null_count:
        return body
    missing = is_null(column)
    return join(where(body, ~missing), flags(missing, b"null"))


def _json_body(column: pa.Array) -> BinaryArray:
    """Encodes values; a null may become any text."""
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(column)
    if types.is_binary(kind) or types.is_large_binary(kind):
        encoded = [None if each is None else base64.b64encode(each) for each in column.to_pylist()]
        return _between(b'"', pa.array(encoded, pa.binary()), b'"')
    if types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        return _object(list(zip(names, column.flatten(), strict=True)), len(column))
    if types.is_list(kind):
        items, offsets = items_of(column)
        return _between(b"[", _separated(_json(items), offsets), b"]")
    if types.is_map(kind):
        keys, values, offsets = pairs_of(column)
        pairs = join(_quoted(keys), repeated(b":", len(keys)), _json(values))
        return _between(b"{", _separated(pairs, offsets), b"}")
    return _number(column, kind)


def _number(column: pa.Array, kind: pa.DataType) -> BinaryArray:
    text = _without_time(column, kind).cast(pa.string())
    if types.is_floating(kind) and not pc.all(pc.is_finite(column).fill_null(True)).as_py():
        texts = [None if each is None else _NO_NUMBERS.get(each, each) for each in text.to_pylist()]
        text = pa.array(texts, pa.string())
    return without_nulls(as_binary(text))


def _between(opening: bytes, content: BinaryArray, closing: bytes) -> BinaryArray:
    return join(repeated(opening, len(content)), without_nulls(content), repeated(closing, len(content)))


def _separated(items: BinaryArray, offsets: npt.NDArray[np.int64]) -> BinaryArray:
    """Joins each row's items with commas between them."""
    follows = np.ones(len(items), np.bool_)
    follows[offsets[:-1][np.diff(offsets) > 0]] = False
    return group(join(flags(follows, b","), items), offsets)


def _quoted(column: pa.Array) -> BinaryArray:
    text = column.fill_null("") if column.null_count else column
    raw = as_binary(text)
    offsets = offsets_of(raw)
    used = np.frombuffer(data_of(raw), np.uint8)[offsets[0] : offsets[-1]]
    for special, escaped in (("\\", "\\\\"), ('"', '\\"')):
        if (used == ord(special)).any():
            text = pc.replace_substring(text, special, escaped)
    if (used < len(_CONTROL)).any():
        for special in _CONTROL:
            text = pc.replace_substring(text, special, json.dumps(special)[1:-1])
    return _between(b'"', as_binary(text), b'"')
