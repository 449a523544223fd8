"""Many places of one buffer read at once: varints, slices that become one Arrow array, and protobuf messages.

Purpose:   a Python step per message costs more than everything else. Here one numpy call takes a step for all rows.
Order:     messages are parsed in step, one field of all of them at a time. Usually all have the same fields in the same
           order, so each step is a few numpy calls; otherwise a step is taken for each group of rows at the same field.
Failure:   places are int64 arrays of positions. A read after the buffer gives its last byte instead of an error: the
           caller compares positions with their end. An unknown field, or a size that leads beyond the message, makes a
           row odd: the caller gives it to protobuf itself, which knows every case and explains errors.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

VARINT_BYTES_MAX: Final = 10
_BEYOND: Final = 1 << 40
"""Added to a position that cannot be right, so that it is beyond any end."""


def varints(data: Bytes, at: Ints) -> tuple[Words, Ints]:
    """Returns the number at each place, and the place after it; one of more than ten bytes ends beyond everything."""
    byte = data.take(at, mode="clip")
    values = (byte & 0x7F).astype(np.uint64)
    following = at + 1
    more = byte >= 0x80
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        if not more.any():
            return values, following
        byte = data.take(following, mode="clip")
        if more.all():
            values |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            following += 1
            more = byte >= 0x80
        else:
            values |= np.where(more, byte & 0x7F, 0).astype(np.uint64) << np.uint64(shift)
            following += more
            more &= byte >= 0x80
    return values, following + more * _BEYOND


def fixed(data: Bytes, at: Ints, kind: str) -> npt.NDArray[Any]:
    """Returns numbers of a fixed size, as numpy names their type, such as `<f8`."""
    width = np.dtype(kind).itemsize
    rows = data.take(at[:, None] + np.arange(width), mode="clip")
    return rows.view(kind).reshape(len(at))


def slices(data: pa.Buffer, start: Ints, end: Ints, missing: Flags | None = None) -> pa.BinaryArray:
    """Returns the bytes from each start to its end, in one copy; null where missing. Slices are in the buffer's order,
    and do not overlap."""
    if missing is not None and missing.any():
        present = ~missing
        places = pa.array(2 * (np.cumsum(present) - 1), mask=missing)
        start, end = start[present], end[present]
    else:
        places = pa.array(np.arange(0, 2 * len(start), 2))
    edges = np.empty(2 * len(start) + 1, np.int32)
    edges[:-1:2] = start
    edges[1::2] = end
    edges[-1] = edges[-2] if len(start) else 0
    # Each slice and each gap after one is an element; every other one is taken.
    everything = pa.Array.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(edges), data])
    return everything.take(places)


def dense(data: pa.Buffer, start: Ints, end: Ints, missing: Flags | None = None) -> pa.BinaryArray:
    """As `slices`, for slices without gaps between them: nothing is copied."""
    edges = np.empty(len(start) + 1, np.int32)
    edges[:-1] = start
    edges[-1] = end[-1] if len(end) else 0
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(start), [validity, pa.py_buffer(edges), data])


NUMBER, SPAN, REPEATED, IGNORED = range(4)
"""Kinds of fields: a varint; a string or bytes; a repeated message; unused fields."""
Table: TypeAlias = Mapping[int, tuple[str, int]]
"""From a field's tag byte to its name and kind."""

_WIRE_TYPE: Final = 7
_WIRE_VARINT: Final = 0


class ParsedFields:
    """Arrays with a value for each row; a field that no row has is missing."""

    __slots__ = ("count", "numbers", "odd", "present", "repeated", "spans")

    def __init__(self, count: int) -> None:
        self.count = count
        self.numbers: dict[str, Ints] = {}
        self.spans: dict[str, tuple[Ints, Ints]] = {}
        self.present: dict[str, Flags] = {}
        """Which rows have the field."""
        self.repeated: dict[str, list[tuple[Ints, Ints, Ints]]] = {}
        """Rows, starts and ends; later occurrences in a row come in later elements."""
        self.odd: list[int] = []


def parse_fields(data: Bytes, start: Ints, end: Ints, table: Table) -> ParsedFields:
    """Parses all messages; the last occurrence of a field counts."""
    parsed = ParsedFields(len(start))
    rows, at, stop = np.arange(len(start)), start.copy(), end
    while True:
        inside = at < stop
        if not inside.all():
            parsed.odd.extend(rows[at > stop].tolist())
            rows, at, stop = rows[inside], at[inside], stop[inside]
        if not len(rows):
            parsed.odd = sorted(set(parsed.odd))
            return parsed
        tags = data.take(at, mode="clip")
        first = tags[0]
        if (tags == first).all():
            at = _step(parsed, data, table, int(first), rows, at + 1, stop)
            continue
        for tag in np.unique(tags):
            group = np.flatnonzero(tags == tag)
            at[group] = _step(parsed, data, table, int(tag), rows[group], at[group] + 1, stop[group])


def _step(parsed: ParsedFields, data: Bytes, table: Table, tag: int, rows: Ints, at: Ints, stop: Ints) -> Ints:
    """Returns the place of the rows after this field."""
    found = table.get(tag)
    if found is None:
        parsed.odd.extend(rows.tolist())
        return stop
    name, kind = found
    values, following = varints(data, at)
    numbers = values.view(np.int64)
    if tag & _WIRE_TYPE == _WIRE_VARINT:
        if kind == NUMBER:
            parsed.numbers[name] = _put(parsed, parsed.numbers.get(name), rows, numbers)
            _mark(parsed, name, rows)
        return following
    ends = following + np.where(numbers < 0, len(data), numbers)
    whole = ends <= stop  # Otherwise the row is odd, because its place is beyond its end.
    if kind == REPEATED:
        parsed.repeated.setdefault(name, []).append((rows[whole], following[whole], ends[whole]))
    elif kind == SPAN:
        before = parsed.spans.get(name, (None, None))
        starts = _put(parsed, before[0], rows, following)
        parsed.spans[name] = starts, _put(parsed, before[1], rows, np.where(whole, ends, following))
        _mark(parsed, name, rows)
    return ends


def _put(parsed: ParsedFields, into: Ints | None, rows: Ints, values: Ints) -> Ints:
    if len(rows) == parsed.count:
        return values
    if into is None:
        into = np.zeros(parsed.count, np.int64)
    into[rows] = values
    return into


def _mark(parsed: ParsedFields, name: str, rows: Ints) -> None:
    if len(rows) == parsed.count:
        parsed.present[name] = np.ones(parsed.count, np.bool_)
        return
    flags = parsed.present.setdefault(name, np.zeros(parsed.count, np.bool_))
    flags[rows] = True
