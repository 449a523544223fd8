"""Protobuf messages that stand at many places of one buffer, parsed in step: one field of all of them at a time.

Usual:     all have the same fields in the same order, so each step is a few numpy calls over all rows. Where they
           differ, a step is taken for each group of rows that is at the same field.
Odd rows:  a field that is not in the table, or a size that leads beyond the message, makes a row odd: the caller gives
           it to protobuf itself, which knows every case and says what is wrong.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, TypeAlias

import numpy as np

from magnetar.spark.decoding.spans import Bytes, Flags, Ints, varints

NUMBER, SPAN, REPEATED, IGNORED = range(4)
"""Kinds of fields: a varint; a string or bytes; a repeated message; whatever nobody asks for."""
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
    """The last occurrence of a field counts."""
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
    """Where the rows are after this field."""
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
    whole = ends <= stop  # Else the row is odd, because its place is beyond its end.
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
