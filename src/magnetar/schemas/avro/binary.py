"""Avro's binary form of values: written for a schema, and read with the schema they were written with.

Format:    values: None, bool, int, float, bytes, str (also an enum's symbol), list, mapping (a map or a record's
           fields). int and long are zigzag, least significant seven bits first; bytes and string have their length in
           front; arrays and maps are a block with its count, ended by 0; a union is its branch's number and the value;
           a record is its fields, one after the other. A missing field is written as its default, or null if it has
           none.
Limits:    the bytes that are read are not trusted: every length is checked against the bytes that are left; items that
           take no bytes are counted; a record inside itself is followed only to a limited depth. Any error is a
           MalformedEntryError.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from magnetar.errors import InvalidPolicyError, MalformedEntryError
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


_PRIMITIVES: dict[str, Callable[[Any, bytearray], None]] = {
    "null": lambda _nothing, _out: None,
    "boolean": lambda flag, out: out.append(int(flag)),
    "int": _write_number,
    "long": _write_number,
    "float": lambda number, out: out.extend(_FLOAT.pack(number)),
    "double": lambda number, out: out.extend(_DOUBLE.pack(number)),
    "bytes": _write_bytes,
    "string": _write_text,
}
ITEMS_MAX: Final = 100_000
"""The limit of items in all arrays and maps of one value together."""
DEPTH_MAX: Final = 100
_NUMBER_BITS_MAX: Final = 63


def decode_value(schema: Schema, data: bytes) -> Any:
    """Decodes one value, which is the whole of `data`."""
    reader = _Reader(data)
    value = reader.read(schema, 0)
    if reader.offset != len(data):
        raise MalformedEntryError(f"{len(data) - reader.offset} bytes are left after an Avro value")
    return value


class _Reader:
    def __init__(self, data: bytes) -> None:
        self.offset = 0
        self._data = data
        self._items_left = ITEMS_MAX

    def read(self, schema: Schema, depth: int) -> Any:
        if depth > DEPTH_MAX:
            raise MalformedEntryError(f"an Avro value is nested deeper than {DEPTH_MAX} levels")
        match schema:
            case RecordSchema():
                return {field.name: self.read(field.schema, depth + 1) for field in schema.fields}
            case UnionSchema():
                return self.read(schema.branches[self._index(len(schema.branches))], depth + 1)
            case ArraySchema():
                return [self.read(schema.items, depth + 1) for count in self._blocks() for _ in range(count)]
            case MapSchema():
                return {
                    self._text(): self.read(schema.values, depth + 1) for count in self._blocks() for _ in range(count)
                }
            case EnumSchema():
                return schema.symbols[self._index(len(schema.symbols))]
            case FixedSchema():
                return self._take(schema.size)
            case _:
                return self._primitive(schema.kind)

    def _primitive(self, kind: str) -> Any:
        match kind:
            case "null":
                return None
            case "boolean":
                return self._take(1) != b"\0"
            case "int" | "long":
                return self._number()
            case "float":
                return _FLOAT.unpack(self._take(4))[0]
            case "double":
                return _DOUBLE.unpack(self._take(8))[0]
            case "bytes":
                return self._take(self._number())
            case _:
                return self._text()

    def _take(self, length: int) -> bytes:
        end = self.offset + length
        if length < 0 or end > len(self._data):
            raise MalformedEntryError(f"an Avro value ends too early: {length} bytes expected at {self.offset}")
        taken = self._data[self.offset : end]
        self.offset = end
        return taken

    def _number(self) -> int:
        shift = zigzag = 0
        while True:
            byte = self._take(1)[0]
            zigzag |= (byte & 0x7F) << shift
            if byte < 0x80:
                return (zigzag >> 1) ^ -(zigzag & 1)
            shift += 7
            if shift > _NUMBER_BITS_MAX:
                raise MalformedEntryError(f"a number in an Avro value is too long, at {self.offset}")

    def _index(self, count: int) -> int:
        index = self._number()
        if not 0 <= index < count:
            raise MalformedEntryError(f"an Avro value names choice {index} of {count}")
        return index

    def _text(self) -> str:
        try:
            return self._take(self._number()).decode()
        except UnicodeDecodeError:
            raise MalformedEntryError("a string in an Avro value is not UTF-8") from None

    def _blocks(self) -> Any:
        """Yields the counts of an array's or map's blocks; the caller reads the items in between."""
        while count := self._number():
            if count < 0:  # The block's size in bytes follows, for readers that skip it.
                count = -count
                self._number()
            self._items_left -= count
            if self._items_left < 0:
                raise MalformedEntryError(f"an Avro value has more than {ITEMS_MAX:_} items")
            yield count
