"""The columns that every topic has, from the headers of many messages. Constants of entries are repeated, not made per
row.

Invariant: messages that compaction removed from their batch are left out. Null is a missing key, a key that the
           producer marks as null, and an event time of 0. A key is bytes; one that is in base64, because it is not
           text, is decoded. A property that comes twice counts once, with its last value, as in Pulsar's Java client.
           Bytes that are not UTF-8 become replacement characters: Spark's strings must be UTF-8.
"""

from __future__ import annotations

import binascii
from collections.abc import Callable, Collection
from functools import lru_cache
from itertools import pairwise
from typing import Any, Final, NamedTuple

import numpy as np
import pyarrow as pa

from magnetar.spark.decoding.byte_spans import (
    IGNORED,
    NUMBER,
    REPEATED,
    SPAN,
    Bytes,
    Flags,
    Ints,
    ParsedFields,
    Table,
    parse_fields,
    slices,
)
from magnetar.spark.decoding.columns import PROPERTIES_TYPE, TIMESTAMP
from magnetar.spark.decoding.primitive_values import text
from magnetar.spark.decoding.row_buffer import Part, Rows
from magnetar.wire.pulsar.frames import text_of
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import KeyValue

_HEADER_BYTES_MIN: Final = 2  # The payload's size must exist.
_ALWAYS: Final = {  # The fields of SingleMessageMetadata, as in pulsar_api.proto.
    0x18: ("payload_size", IGNORED),
    0x20: ("compacted_out", NUMBER),
    0x3A: ("ordering_key", IGNORED),
    0x48: ("null_value", NUMBER),
}
_BY_COLUMN: Final = {
    "properties": {0x0A: ("properties", REPEATED)},
    "key": {0x12: ("key", SPAN), 0x30: ("is_base64", NUMBER), 0x50: ("null_key", NUMBER)},
    "event_time": {0x28: ("event_time", NUMBER)},
    "sequence_id": {0x40: ("sequence_id", NUMBER)},
}
_COMPARED_MAX: Final = 100
_TABLE: Final[Table] = {0x0A: ("name", SPAN), 0x12: ("text", SPAN)}
_US_PER_MS: Final = 1000
_NUMBERS_KEPT: Final = 2000
_REPEATED_STEP: Final = 4096


class Settled(NamedTuple):
    rows: Rows
    """Those that are left."""
    headers: ParsedFields


def table_for(sources: Collection[str]) -> Table:
    table: dict[int, tuple[str, int]] = dict(_ALWAYS)
    for column, fields in _BY_COLUMN.items():
        for tag, (name, kind) in fields.items():
            table[tag] = name, kind if column in sources else IGNORED
    return table


def settle(rows: Rows, table: Table) -> Settled:
    """Parses the headers; MalformedEntryError names the message with an invalid header."""
    headers = _parse(rows, table)
    if headers.odd:
        rows = rows.rewritten(headers.odd)
        headers = _parse(rows, table)
        assert not headers.odd
    gone = headers.numbers.get("compacted_out")
    if gone is not None and gone.any():
        rows = rows.kept(gone == 0)
        headers = _parse(rows, table)
    return Settled(rows, headers)


def _parse(rows: Rows, table: Table) -> ParsedFields:
    start, end = rows.headers.start, rows.headers.end
    parsed = parse_fields(rows.headers.data, start, end, table)
    if (empty := np.flatnonzero(end - start < _HEADER_BYTES_MIN)).size:
        parsed.odd = sorted({*parsed.odd, *empty.tolist()})
    return parsed


def flag(headers: ParsedFields, name: str) -> Flags | None:
    """Returns None if no row has the flag."""
    numbers = headers.numbers.get(name)
    return None if numbers is None or not numbers.any() else numbers != 0


def _sequence_id(settled: Settled) -> pa.Array:
    """Returns the ids; a message without one has the entry's, as in Pulsar's Java client."""
    rows, headers = settled
    present = headers.present.get("sequence_id")
    if present is not None and present.all():
        return pa.array(headers.numbers["sequence_id"])
    of_entries = np.array([part.sequence_id for part in rows.parts], np.uint64).view(np.int64)[rows.entry]
    return pa.array(of_entries if present is None else np.where(present, headers.numbers["sequence_id"], of_entries))


def keys(settled: Settled) -> pa.BinaryArray:
    rows, headers = settled
    present = headers.present.get("key")
    if present is None:
        return pa.nulls(len(rows), pa.binary())
    null = flag(headers, "null_key")
    missing = ~present if null is None else ~present | null
    start, end = headers.spans["key"]
    found = slices(rows.header_buffer, start, end, missing)
    encoded = flag(headers, "is_base64")
    return found if encoded is None else _from_base64(found, encoded)


def _from_base64(found: pa.BinaryArray, encoded: Flags) -> pa.BinaryArray:
    decoded = [
        _decoded(key) if is_encoded and key is not None else key
        for key, is_encoded in zip(found.to_pylist(), encoded.tolist(), strict=True)
    ]
    return pa.array(decoded, pa.binary())


def _decoded(key: bytes) -> bytes:
    try:
        return binascii.a2b_base64(key, strict_mode=True)
    except binascii.Error:
        return key  # It is not base64: the bytes as they are are better than nothing.


def properties(settled: Settled) -> pa.MapArray:
    found = settled.headers.repeated.get("properties", [])
    rows = len(settled.rows)
    owner, start, end = _in_order(found, rows)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
    names, texts = _pairs(settled, start, end)
    if _has_repeated(owner, names):
        pairs = list(zip(names.to_pylist(), texts.to_pylist(), strict=True))
        return pa.array([list(dict(pairs[a:b]).items()) for a, b in pairwise(offsets.tolist())], PROPERTIES_TYPE)
    return pa.MapArray.from_arrays(pa.array(offsets), names, texts, type=PROPERTIES_TYPE)


def _in_order(found: list[tuple[Ints, Ints, Ints]], rows: int) -> tuple[Ints, Ints, Ints]:
    """Returns row, start and end of each, by row; within a row in the order of the occurrences."""
    if not found:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    if all(len(owner) == rows for owner, _, _ in found):  # Each row has the same number: no sorting.
        owner, start, end = (np.stack([each[part] for each in found], axis=1).ravel() for part in range(3))
        return owner, start, end
    owner, start, end = (np.concatenate([each[part] for each in found]) for part in range(3))
    order = np.argsort(owner, kind="stable")
    return owner[order], start[order], end[order]


def _pairs(settled: Settled, start: Ints, end: Ints) -> tuple[pa.StringArray, pa.StringArray]:
    pairs = parse_fields(settled.rows.headers.data, start, end, _TABLE)
    if pairs.odd or len(pairs.present) < len(_TABLE) or not all(flags.all() for flags in pairs.present.values()):
        return _parsed_slowly(settled, start, end)
    buffer = settled.rows.header_buffer
    return text(slices(buffer, *pairs.spans["name"])), text(slices(buffer, *pairs.spans["text"]))


def _parsed_slowly(settled: Settled, start: Ints, end: Ints) -> tuple[pa.StringArray, pa.StringArray]:
    data = settled.rows.headers.data
    pairs = [KeyValue.FromString(data[a:b].tobytes()) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    names, texts = [text_of(pair.key) for pair in pairs], [text_of(pair.value) for pair in pairs]
    return pa.array(names, pa.string()), pa.array(texts, pa.string())


def _has_repeated(owner: Ints, names: pa.StringArray) -> bool:
    """Reports whether a row has a name twice: each is compared with those one, two, … places before it."""
    codes = None
    for distance in range(1, min(len(owner), _COMPARED_MAX)):
        is_same_row = owner[distance:] == owner[:-distance]
        if not is_same_row.any():
            return False
        if codes is None:
            codes = names.dictionary_encode().indices.to_numpy()
        if (is_same_row & (codes[distance:] == codes[:-distance])).any():
            return True
    return len(owner) >= _COMPARED_MAX  # Some row has very many: they are checked one by one.


# --- columns ----------------------------------------------------------------------------------------------------------


def _grid(texts: list[str]) -> Bytes:
    padded = np.array([text.encode() for text in texts])
    return padded.view(np.uint8).reshape(len(texts), padded.itemsize)


def _lengths(grid: Bytes) -> Ints:
    lengths: Ints = np.count_nonzero(grid, axis=1)
    return lengths


_NUMBERS: Final = _grid([str(number) for number in range(-1, _NUMBERS_KEPT)])
"""Batch indexes, from -1 on."""


def values(settled: Settled) -> pa.BinaryArray:
    return settled.rows.payloads(flag(settled.headers, "null_value"))


def _repeated_text(settled: Settled, text_of_part: Callable[[Part], str]) -> pa.Array:
    rows = settled.rows
    texts = [text_of_part(part) for part in rows.parts]
    if texts.count(texts[0]) == len(texts):
        return _repeated(texts[0], -(-len(rows) // _REPEATED_STEP)).slice(0, len(rows))
    return pa.array(texts, pa.string()).take(pa.array(rows.entry))


@lru_cache(maxsize=64)
def _repeated(name: str, steps: int) -> pa.Array:
    """Is cached, as one batch follows another with the same names."""
    return pa.repeat(pa.scalar(name, pa.string()), steps * _REPEATED_STEP)


def _event_time(settled: Settled) -> pa.Array:
    times = settled.headers.numbers.get("event_time")
    return pa.nulls(len(settled.rows), TIMESTAMP) if times is None else _times(times, times == 0)


def _times(milliseconds: Ints, missing: Flags | None = None) -> pa.Array:
    return pa.array(milliseconds * _US_PER_MS, mask=missing).view(TIMESTAMP)


def _message_id(settled: Settled) -> pa.Array:
    """Puts both parts of each text side by side in a grid, of which everything but the padding is taken."""
    rows = settled.rows
    batch = _of_parts(settled, lambda part: part.first_batch_index) + rows.ordinal
    entries = _grid([f"{part.ledger_id}:{part.entry_id}:{part.partition}:" for part in rows.parts])
    most = int(batch.max(initial=0))
    numbers = _NUMBERS if most < _NUMBERS_KEPT else _grid([str(number) for number in range(-1, most + 1)])
    grid = np.concatenate((entries.take(rows.entry, axis=0), numbers.take(batch + 1, axis=0)), axis=1)
    lengths = _lengths(entries)[rows.entry] + _lengths(numbers)[batch + 1]
    edges = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(edges), pa.py_buffer(grid[grid != 0])])


def _of_parts(settled: Settled, number: Callable[[Part], int]) -> Ints:
    rows = settled.rows
    return np.array([number(part) for part in rows.parts], np.int64)[rows.entry]


RAW_COLUMNS: Final[dict[str, Callable[[Settled], Any]]] = {
    "key": keys,
    "value": values,
    "topic": lambda settled: _repeated_text(settled, lambda part: part.topic),
    "partition": lambda settled: pa.array(_of_parts(settled, lambda part: part.partition).astype(np.int32)),
    "message_id": _message_id,
    "index": lambda settled: pa.array(_of_parts(settled, lambda part: part.first_index) + settled.rows.ordinal),
    "publish_time": lambda settled: _times(_of_parts(settled, lambda part: part.publish_ms)),
    "event_time": _event_time,
    "producer": lambda settled: _repeated_text(settled, lambda part: part.producer),
    "sequence_id": _sequence_id,
    "properties": properties,
    "redelivery_count": lambda settled: pa.array(np.zeros(len(settled.rows), np.int32)),  # Subscriptions redeliver.
}
