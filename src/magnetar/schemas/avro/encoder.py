"""Writes values in Avro's binary form.

Format:    values: None, bool, int, float, bytes, str (also an enum's symbol), list, mapping (a map or a record's
           fields). int and long are zigzag, least significant seven bits first; bytes and string have their length in
           front; arrays and maps are a block with its count, ended by 0; a union is its branch's number and the value;
           a record is its fields, one after the other. A missing field is written as its default, or null if it has
           none.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from magnetar.errors import InvalidPolicyError
from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
    name_of,
)

_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")
_RANGES = {"int": (-(2**31), 2**31 - 1), "long": (-(2**63), 2**63 - 1)}


def encode_value(schema: Schema, value: Any) -> bytes:
    """Encodes a value; InvalidPolicyError names the type that a value does not have."""
    out = bytearray()
    _write(schema, value, out)
    return bytes(out)


def _write(schema: Schema, value: Any, out: bytearray) -> None:
    if not _is_of(schema, value):
        raise InvalidPolicyError(f"{value!r} is not {name_of(schema)}")
    match schema:
        case RecordSchema():
            for field in schema.fields:
                _write(field.schema, value.get(field.name, field.default if field.has_default else None), out)
        case UnionSchema():
            index = next(index for index, branch in enumerate(schema.branches) if _is_of(branch, value))
            _write_number(index, out)
            _write(schema.branches[index], value, out)
        case ArraySchema():
            _write_block(value, out, lambda each: _write(schema.items, each, out))
        case MapSchema():
            _write_block(list(value.items()), out, lambda entry: _write_entry(schema.values, entry, out))
        case EnumSchema():
            _write_number(schema.symbols.index(value), out)
        case FixedSchema():
            out += value
        case _:
            _PRIMITIVES[schema.kind](value, out)


def _is_of(schema: Schema, value: Any) -> bool:
    """Looks only as deep as the choice of a union's branch needs."""
    match schema:
        case RecordSchema() | MapSchema():
            return isinstance(value, Mapping)
        case UnionSchema():
            return any(_is_of(branch, value) for branch in schema.branches)
        case ArraySchema():
            return isinstance(value, Sequence) and not isinstance(value, (str, bytes))
        case EnumSchema():
            return value in schema.symbols
        case FixedSchema():
            return isinstance(value, bytes) and len(value) == schema.size
        case _:
            return _is_primitive(schema.kind, value)


def _is_primitive(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if isinstance(value, bool) or kind == "boolean":
        return isinstance(value, bool) and kind == "boolean"
    if kind in _RANGES:
        low, high = _RANGES[kind]
        return isinstance(value, int) and low <= value <= high
    if kind in ("float", "double"):
        return isinstance(value, (int, float))
    return isinstance(value, bytes if kind == "bytes" else str)


def _write_number(value: int, out: bytearray) -> None:
    zigzag = (value << 1) ^ (value >> 63)
    while zigzag > 0x7F:
        out.append(zigzag & 0x7F | 0x80)
        zigzag >>= 7
    out.append(zigzag)


def _write_bytes(value: bytes, out: bytearray) -> None:
    _write_number(len(value), out)
    out += value


def _write_text(value: str, out: bytearray) -> None:
    _write_bytes(value.encode(), out)


def _write_block(items: Sequence[Any], out: bytearray, write: Callable[[Any], None]) -> None:
    if items:
        _write_number(len(items), out)
        for each in items:
            write(each)
    _write_number(0, out)


def _write_entry(values: Schema, entry: tuple[str, Any], out: bytearray) -> None:
    _write_text(entry[0], out)
    _write(values, entry[1], out)


def _write_nothing(_value: None, _out: bytearray) -> None:
    """Null takes no bytes."""


def _write_flag(value: bool, out: bytearray) -> None:
    out.append(int(value))


def _write_float(value: float, out: bytearray) -> None:
    out += _FLOAT.pack(value)


def _write_double(value: float, out: bytearray) -> None:
    out += _DOUBLE.pack(value)


_PRIMITIVES: dict[str, Callable[[Any, bytearray], None]] = {
    "null": _write_nothing,
    "boolean": _write_flag,
    "int": _write_number,
    "long": _write_number,
    "float": _write_float,
    "double": _write_double,
    "bytes": _write_bytes,
    "string": _write_text,
}
