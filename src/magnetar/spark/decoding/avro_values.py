"""Reads Avro's binary form, many values at once: one part of the schema for all rows before the next part.

Order:     the schema determines the next part, the same for every row; so each step is a few numpy calls over all rows.
           Unwanted fields are stepped over in the same way. The branches of a union and the items of an array are read
           for the rows that have them, then put in order.
Format:    values have the units in which they are written; typed_columns.py makes them the column's type.
Failure:   no row leaves its own bytes, and an array's items are counted. An error names the row.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import pyarrow as pa

from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)
from magnetar.spark.decoding.byte_spans import Bytes, Flags, Ints, fixed, slices, varints
from magnetar.spark.decoding.columns import stored_type
from magnetar.spark.decoding.primitive_values import (
    UnreadableValueError,
    data_of,
    edges,
    from_unscaled,
    has_room,
    spread,
    text,
)

ITEMS_MAX: Final = 100_000
"""The limit of items in one array or map; each is a step for the rows that have it."""
_WIDTHS: Final = {"boolean": 1, "float": 4, "double": 8}


def read_avro(schema: Schema, values: pa.BinaryArray, wanted: Collection[str] | None = None) -> pa.Array:
    """Returns values of `stored_type(schema)`; null where they are null. Bytes after a value are ignored, as in Avro.
    `wanted`: the fields of a record to read; others are stepped over, and missing in the result."""
    is_present = values.is_valid().to_numpy(zero_copy_only=False)
    present = np.flatnonzero(is_present)
    places = edges(values)
    data = values.buffers()[2] or pa.py_buffer(b"")
    reader = _Reader(data, data_of(values))
    cursor = _Cursor(present, places[:-1][present].copy(), places[1:][present])
    if isinstance(schema, RecordSchema) and wanted is not None:
        found = reader.read_some(schema, cursor, wanted)
    else:
        found = reader.read(schema, cursor)
    return spread(found, is_present)


@dataclass(slots=True)
class _Cursor:
    """The place of each row in its value, and the value's end."""

    rows: Ints
    at: Ints
    end: Ints

    def subset(self, which: Ints) -> _Cursor:
        return _Cursor(self.rows[which], self.at[which], self.end[which])

    def move(self, to: Ints) -> None:
        if (wrong := np.flatnonzero(to > self.end)).size:
            raise UnreadableValueError(int(self.rows[wrong[0]]), "it ends before all of its fields were read")
        self.at = to

    def refuse(self, wrong: Flags, reason: str) -> None:
        if wrong.any():
            raise UnreadableValueError(int(self.rows[np.flatnonzero(wrong)[0]]), reason)


class _Reader:
    def __init__(self, buffer: pa.Buffer, data: Bytes) -> None:
        self._buffer = buffer
        self._data = data

    def read_some(self, schema: RecordSchema, cursor: _Cursor, wanted: Collection[str]) -> pa.Array:
        arrays: dict[str, pa.Array] = {}
        for field in schema.fields:
            if field.name in wanted:
                arrays[field.name] = self.read(field.schema, cursor)
            else:
                self.skip(field.schema, cursor)
        return _struct(list(arrays), list(arrays.values()), len(cursor.rows))

    def read(self, schema: Schema, cursor: _Cursor) -> pa.Array:
        """Reads a value for every row of the cursor, and moves the cursor after it."""
        match schema:
            case RecordSchema():
                arrays = [self.read(field.schema, cursor) for field in schema.fields]
                return _struct([field.name for field in schema.fields], arrays, len(cursor.rows))
            case UnionSchema():
                return self._union(schema, cursor)
            case ArraySchema():
                owners, items = self._items(schema.items, cursor, with_names=False)
                return pa.ListArray.from_arrays(_offsets(owners, cursor), items[0], type=stored_type(schema))
            case MapSchema():
                owners, items = self._items(schema.values, cursor, with_names=True)
                return pa.MapArray.from_arrays(_offsets(owners, cursor), *items, type=stored_type(schema))
            case EnumSchema():
                numbers = self._index(cursor, len(schema.symbols))
                return pa.array(schema.symbols, pa.string()).take(pa.array(numbers))
            case FixedSchema():
                return _bytes(schema, self._span(cursor, np.full(len(cursor.rows), schema.size)), cursor)
            case _:
                return self._primitive(schema, cursor)

    def skip(self, schema: Schema, cursor: _Cursor) -> None:
        """Moves the cursor as `read` does, and makes nothing."""
        match schema:
            case RecordSchema():
                for field in schema.fields:
                    self.skip(field.schema, cursor)
            case UnionSchema():
                for branch, _which, part in self._branches(schema, cursor):
                    self.skip(branch, part)
            case ArraySchema() | MapSchema():
                self._skip_items(schema, cursor)
            case EnumSchema():
                self._index(cursor, len(schema.symbols))
            case FixedSchema():
                self._step_over(cursor, np.full(len(cursor.rows), schema.size))
            case _:
                self._skip_primitive(schema.kind, cursor)

    def _skip_items(self, schema: ArraySchema | MapSchema, cursor: _Cursor) -> None:
        for _which, part in self._each_item(cursor):
            if isinstance(schema, MapSchema):
                self._step_over(part, self._number(part))
                self.skip(schema.values, part)
            else:
                self.skip(schema.items, part)

    def _skip_primitive(self, kind: str, cursor: _Cursor) -> None:
        match kind:
            case "null":
                pass
            case "boolean" | "float" | "double":
                cursor.move(cursor.at + _WIDTHS[kind])
            case "int" | "long":
                self._number(cursor)
            case _:
                self._step_over(cursor, self._number(cursor))

    def _primitive(self, schema: Schema, cursor: _Cursor) -> pa.Array:
        match schema.kind:
            case "null":
                return pa.nulls(len(cursor.rows))
            case "boolean":
                return pa.array(self._fixed(cursor, "u1") != 0)
            case "float":
                return pa.array(self._fixed(cursor, "<f4"))
            case "double":
                return pa.array(self._fixed(cursor, "<f8"))
            case "int":
                return pa.array(self._number(cursor).astype(np.int32)).view(stored_type(schema))
            case "long":
                return pa.array(self._number(cursor)).view(stored_type(schema))
            case "bytes":
                return _bytes(schema, self._span(cursor, self._number(cursor)), cursor)
            case _:
                return text(self._span(cursor, self._number(cursor)))

    def _fixed(self, cursor: _Cursor, kind: str) -> Any:
        found = fixed(self._data, cursor.at, kind)
        cursor.move(cursor.at + np.dtype(kind).itemsize)
        return found

    def _number(self, cursor: _Cursor) -> Ints:
        zigzag, following = varints(self._data, cursor.at)
        cursor.move(following)
        return (zigzag >> np.uint64(1)).view(np.int64) ^ -(zigzag & np.uint64(1)).view(np.int64)

    def _index(self, cursor: _Cursor, count: int) -> Ints:
        numbers = self._number(cursor)
        cursor.refuse((numbers < 0) | (numbers >= count), f"it names a choice outside of {count}")
        return numbers

    def _span(self, cursor: _Cursor, length: Ints) -> pa.BinaryArray:
        start = cursor.at
        self._step_over(cursor, length)
        return slices(self._buffer, start, cursor.at)

    def _step_over(self, cursor: _Cursor, length: Ints) -> None:
        cursor.refuse(length < 0, "it has a length below zero")
        cursor.move(cursor.at + np.minimum(length, len(self._data) + 1))

    def _union(self, schema: UnionSchema, cursor: _Cursor) -> pa.Array:
        kind = stored_type(schema)
        rows = len(cursor.rows)
        order = np.zeros(rows, np.int64)
        is_null = np.zeros(rows, np.bool_)
        arrays: list[pa.Array] = []
        placed = 0
        for branch, which, part in self._branches(schema, cursor):
            if branch.kind == "null":
                is_null[which] = True
                continue
            arrays.append(self.read(branch, part).cast(kind))
            order[which] = np.arange(placed, placed + len(which))
            placed += len(which)
        if placed == rows and len(arrays) == 1:
            return arrays[0]
        return pa.concat_arrays(arrays or [pa.nulls(0, kind)]).take(pa.array(order, mask=is_null))

    def _branches(self, schema: UnionSchema, cursor: _Cursor) -> Iterator[tuple[Schema, Ints, _Cursor]]:
        """Yields each branch that rows have, the rows' numbers in the cursor, and a cursor of them, which it then
        follows."""
        numbers = self._index(cursor, len(schema.branches))
        for number in np.unique(numbers):
            which = np.flatnonzero(numbers == number)
            part = cursor.subset(which)
            yield schema.branches[number], which, part
            cursor.at[which] = part.at

    def _items(self, item: Schema, cursor: _Cursor, *, with_names: bool) -> tuple[Ints, list[pa.Array]]:
        """Returns the rows' numbers in the cursor, once for each item, and the items; with `with_names`, names
        first."""
        owners: list[Ints] = [np.zeros(0, np.int64)]
        items: list[list[pa.Array]] = [[pa.array([], pa.string())], [pa.nulls(0, stored_type(item))]]
        for which, part in self._each_item(cursor):
            if with_names:
                items[0].append(text(self._span(part, self._number(part))))
            items[1].append(self.read(item, part))
            owners.append(which)
        owner = np.concatenate(owners)
        order = pa.array(np.argsort(owner, kind="stable"))
        wanted = items if with_names else items[1:]
        return owner, [pa.concat_arrays(each).take(order) for each in wanted]

    def _each_item(self, cursor: _Cursor) -> Iterator[tuple[Ints, _Cursor]]:
        """Yields the first items of all rows, then the second ones: the rows that have one, and a cursor of them before
        it, which the whole one then follows."""
        waiting = np.arange(len(cursor.rows))
        steps = 0
        while len(waiting):
            part = cursor.subset(waiting)
            counts = self._block_counts(part)
            cursor.at[waiting] = part.at
            waiting, counts = waiting[counts > 0], counts[counts > 0]
            for step in range(int(counts.max(initial=0))):
                steps += 1
                which = waiting[counts > step]
                part = cursor.subset(which)
                part.refuse(np.full(len(which), steps > ITEMS_MAX), f"it has more than {ITEMS_MAX:,} items")
                yield which, part
                cursor.at[which] = part.at

    def _block_counts(self, cursor: _Cursor) -> Ints:
        counts = self._number(cursor)
        sized = np.flatnonzero(counts < 0)
        if len(sized):  # The block's size in bytes follows, for readers that skip it.
            part = cursor.subset(sized)
            self._number(part)
            cursor.at[sized] = part.at
        return np.abs(counts)


def _offsets(owners: Ints, cursor: _Cursor) -> pa.Array:
    offsets = np.zeros(len(cursor.rows) + 1, np.int32)
    np.cumsum(np.bincount(owners, minlength=len(cursor.rows)), out=offsets[1:])
    return pa.array(offsets)


def _struct(names: list[str], arrays: list[pa.Array], rows: int) -> pa.Array:
    return pa.StructArray.from_arrays(arrays, names=names) if arrays else pa.array([{}] * rows, pa.struct([]))


def _bytes(schema: Schema, found: pa.BinaryArray, cursor: _Cursor) -> pa.Array:
    kind = stored_type(schema)
    return _decimals(found, kind, cursor) if pa.types.is_decimal(kind) else found


def _decimals(found: pa.BinaryArray, kind: pa.DataType, cursor: _Cursor) -> pa.Array:
    numbers = [from_unscaled(each, kind) for each in found.to_pylist()]
    too_long = np.array([not has_room(kind, each) for each in numbers], np.bool_)
    cursor.refuse(too_long, f"it has a decimal of more than {kind.precision} digits")
    return pa.array(numbers, kind)
