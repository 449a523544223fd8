"""Reads values in Avro's binary form, with the schema they were written with. The bytes are not trusted.

Limits:    every length is checked against the bytes that are left; items that take no bytes are counted; a record
           inside itself is followed only to a limited depth. Any error is a MalformedEntryError.
"""

from __future__ import annotations

import struct
from typing import Any, Final

from magnetar.errors import MalformedEntryError
from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)

ITEMS_MAX: Final = 100_000
"""The limit of items in all arrays and maps of one value together."""
DEPTH_MAX: Final = 100
_NUMBER_BITS_MAX: Final = 63
_FLOAT = struct.Struct("<f")
_DOUBLE = struct.Struct("<d")


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
