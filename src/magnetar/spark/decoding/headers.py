"""What the headers of many messages say, for the columns that are wanted.

Left out:  messages that compaction took out of their batch.
Null:      a key that is not there, or that the producer says is null; an event time of 0.
Key:       as bytes; one that stands there in base64, because it is not text, is decoded.
"""

from __future__ import annotations

import binascii
from collections.abc import Collection
from typing import Final, NamedTuple

import numpy as np
import pyarrow as pa

from magnetar.spark.decoding.fields import IGNORED, NUMBER, REPEATED, SPAN, ParsedFields, Table, parse_fields
from magnetar.spark.decoding.rows import Rows
from magnetar.spark.decoding.spans import Flags, Ints, slices

_HEADER_BYTES_MIN: Final = 2  # The payload's size must be there.
_ALWAYS: Final = {  # SingleMessageMetadata, as pulsar_api.proto has it.
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


def table_for(sources: Collection[str]) -> Table:
    """Only fields that these columns need are kept."""
    table: dict[int, tuple[str, int]] = dict(_ALWAYS)
    for column, fields in _BY_COLUMN.items():
        for tag, (name, kind) in fields.items():
            table[tag] = name, kind if column in sources else IGNORED
    return table


class Settled(NamedTuple):
    rows: Rows
    """Those that are left."""
    headers: ParsedFields


def settle(rows: Rows, table: Table) -> Settled:
    """MalformedEntryError names the message whose header is none."""
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
    """None: no row has it."""
    numbers = headers.numbers.get(name)
    return None if numbers is None or not numbers.any() else numbers != 0


def null_values(headers: ParsedFields) -> Flags | None:
    return flag(headers, "null_value")


def sequence_ids(settled: Settled) -> Ints:
    """A message without one of its own has the entry's, as Pulsar's Java client says."""
    rows, headers = settled
    present = headers.present.get("sequence_id")
    if present is not None and present.all():
        return headers.numbers["sequence_id"]
    of_entries = np.array([part.sequence_id for part in rows.parts], np.uint64).view(np.int64)[rows.entry]
    return of_entries if present is None else np.where(present, headers.numbers["sequence_id"], of_entries)


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
        return key  # Not what it says: better what is there than nothing.
