"""Columns of messages: their keys and properties as Pulsar carries them, and their bytes inside a batch.

Format:    (metadata_size u32 | SingleMessageMetadata | payload) … (wire/pulsar/entry.py). The metadata's fields are
           made column by column and joined row by row, in the order in which protobuf writes them.
           A null value is a tombstone (null_value); a null key is no key; a null event time is no field.
           A key is carried as text. Bytes that are UTF-8 are that text; other bytes are base64, with a flag, as the
           Java client's `keyBytes`. The same bytes are always carried in the same way. Properties are a column of maps,
           or of lists of pairs, as protobuf's repeated field 1; bytes must be UTF-8, a null value is an empty string.
           All pairs of a column are encoded at once; those of one row are adjacent, so a row is a range.
Invariant: a key's partition is Java's hash of the text without its sign, modulo the partitions, as in the Java client
           and the Python client by default. It is computed over UTF-16 units for a whole column at once.
"""

from __future__ import annotations

import base64
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.arrays import (
    BinaryArray,
    Ints,
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
    varint_lengths,
    varints,
    where,
    without_nulls,
)

_FACTOR = np.uint32(31)
_CONTINUES = 0x80  # UTF-8: 10xxxxxx
_TWO_UNITS = 0xF0  # A first byte from here on begins a character of two units in UTF-16.
_PAIR_TAG = b"\x0a"  # For SingleMessageMetadata; KeyValue has the same for its key.
_PROPERTY_KEY_TAG = b"\x0a"
_VALUE_TAG = b"\x12"
_KEY_TAG = b"\x12"
_SIZE_TAG = b"\x18"
_EVENT_TAG = b"\x28"
_BASE64_FIELD = b"\x30\x01"
_NULL_VALUE_FIELD = b"\x48\x01"
_OVERHEAD_BYTES = 40  # More than size, tags and varints of a message take; the other bytes are counted.


@dataclass(frozen=True, slots=True)
class Keys:
    """A column of keys. Rows without one are null."""

    text: BinaryArray
    is_base64: npt.NDArray[np.bool_] | None = None
    """None: no row is."""

    def take(self, rows: pa.Array) -> Keys:
        flags = None if self.is_base64 is None else self.is_base64[rows.to_numpy()]
        return Keys(self.text.take(rows), flags)

    def slice(self, start: int, count: int) -> Keys:
        flags = None if self.is_base64 is None else self.is_base64[start : start + count]
        return Keys(self.text.slice(start, count), flags)


@dataclass(frozen=True, slots=True)
class MessageKey:
    text: str
    is_base64: bool


@dataclass(frozen=True)
class Messages:
    """Rows that become messages, in their order."""

    values: BinaryArray
    """Null: a tombstone."""
    keys: Keys | None = None
    event_ms: pa.Array | None = None
    """int64; null: none."""
    properties: pa.Array | None = None
    """Maps, or lists of pairs."""

    def __len__(self) -> int:
        return len(self.values)

    def take(self, rows: Ints) -> Messages:
        chosen = pa.array(rows)
        return self._picked(lambda part: part.take(chosen))

    def slice(self, start: int, count: int) -> Messages:
        return self._picked(lambda part: part.slice(start, count))

    def _picked(self, pick: Callable[[Any], Any]) -> Messages:
        parts = (self.values, self.keys, self.event_ms, self.properties)
        return Messages(*(None if part is None else pick(part) for part in parts))

    def key_of(self, row: int) -> MessageKey | None:
        if self.keys is None:
            return None
        text = self.keys.text[row].as_py()
        if text is None:
            return None
        return MessageKey(text.decode(), self.keys.is_base64 is not None and bool(self.keys.is_base64[row]))

    @cached_property
    def encoded_properties(self) -> BinaryArray | None:
        return None if self.properties is None else encode_properties(self.properties)

    @cached_property
    def sizes(self) -> Ints:
        """Returns the most bytes that each takes in a batch."""
        sizes = lengths_of(without_nulls(self.values)) + _OVERHEAD_BYTES
        if self.keys is not None:
            sizes += 2 * lengths_of(without_nulls(self.keys.text))  # The entry of a lone message repeats its key.
        if self.encoded_properties is not None:
            sizes += lengths_of(self.encoded_properties)
        return sizes


@dataclass(frozen=True, slots=True)
class EncodedMessages:
    """Messages as a batch has them: message i is `data[offsets[i]:offsets[i + 1]]`."""

    data: memoryview
    offsets: Ints


def encode_messages(messages: Messages) -> EncodedMessages:
    payloads = without_nulls(messages.values)
    parts = [*_key_parts(messages), varints(lengths_of(payloads), _SIZE_TAG), *_last_fields(messages)]
    if messages.encoded_properties is not None:
        parts.insert(0, messages.encoded_properties)
    sizes = np.sum([lengths_of(part) for part in parts], axis=0)
    joined = join(fixed_width(sizes.astype(">u4").view(np.uint8).reshape(-1, 4)), *parts, payloads)
    return EncodedMessages(data_of(joined), offsets_of(joined))


def _key_parts(messages: Messages) -> list[BinaryArray]:
    if messages.keys is None:
        return []
    text = messages.keys.text
    lengths = lengths_of(without_nulls(text))
    return [where(varints(lengths, _KEY_TAG), ~is_null(text)), without_nulls(text)]


def _last_fields(messages: Messages) -> list[BinaryArray]:
    """Returns the fields after the payload's size."""
    fields: list[BinaryArray] = []
    if messages.event_ms is not None:
        numbers = messages.event_ms.fill_null(0).to_numpy()
        fields.append(where(varints(numbers, _EVENT_TAG), numbers != 0))
    if messages.keys is not None and messages.keys.is_base64 is not None:
        fields.append(flags(messages.keys.is_base64, _BASE64_FIELD))
    if messages.values.null_count:
        fields.append(flags(is_null(messages.values), _NULL_VALUE_FIELD))
    return fields


def read_keys(column: pa.Array) -> Keys:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Keys(as_binary(column))
    raw = as_binary(column)
    try:
        raw.cast(pa.string())  # Arrow checks that it is UTF-8, and copies nothing.
    except pa.ArrowInvalid:
        return _mixed(raw)
    return Keys(raw)


def _mixed(raw: BinaryArray) -> Keys:
    encoded = raw.dictionary_encode()
    texts = [_as_text(key) for key in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(-1).to_numpy()
    marks = np.array([is_base64 for _, is_base64 in texts] + [False])  # The last is for nulls.
    text = pa.array([text for text, _ in texts], pa.binary()).take(encoded.indices)
    return Keys(text, marks[codes])


def _as_text(key: bytes) -> tuple[bytes, bool]:
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key), True
    return key, False


def java_hashes(text: BinaryArray) -> Ints:
    """Returns Java's hash of each row's text without its sign; for a null that of an empty text."""
    text = without_nulls(text)
    offsets = offsets_of(text)
    data = np.frombuffer(data_of(text), np.uint8)[offsets[0] : offsets[-1]]
    if len(data) and data.max() >= _CONTINUES:
        units, lengths = _utf16(data, offsets - offsets[0])
    else:
        units, lengths = data.astype(np.uint32), lengths_of(text)
    return _hash(units, lengths)


def _utf16(data: npt.NDArray[np.uint8], offsets: Ints) -> tuple[npt.NDArray[np.uint32], Ints]:
    starts = (data & 0xC0 != _CONTINUES).astype(np.int64) + (data >= _TWO_UNITS)
    before = np.concatenate(([0], np.cumsum(starts)))
    units = np.frombuffer(data.tobytes().decode().encode("utf-16-le"), "<u2").astype(np.uint32)
    return units, np.diff(before[offsets])


def _hash(units: npt.NDArray[np.uint32], lengths: Ints) -> Ints:
    """Returns Σ unit · 31^(number of later units), modulo 2^32, for each run of `lengths`."""
    hashes = np.zeros(len(lengths), np.uint32)
    if not len(units):
        return hashes.astype(np.int64)
    ends = np.cumsum(lengths)
    following = np.repeat(ends, lengths) - np.arange(1, len(units) + 1)
    powers = np.full(int(lengths.max()), _FACTOR, np.uint32)
    powers[0] = 1
    weighted = units * np.multiply.accumulate(powers)[following]
    filled = lengths > 0
    hashes[filled] = np.add.reduceat(weighted, (ends - lengths)[filled])
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)


def encode_properties(column: pa.Array) -> BinaryArray:
    """Encodes a row's properties as fields of its metadata; nothing for a null and for none."""
    keys, values, offsets = _pairs(column)
    if keys.null_count:
        raise SinkDataError("a property without a name: the keys of the column properties must not be null")
    return group(_encode_pairs(_text(keys), _text(values)), offsets)


def properties_of_row(column: pa.Array, row: int) -> dict[str, str]:
    """Returns one row's properties, for a message that is encoded by itself."""
    given: Any = column[row].as_py() or ()
    pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in given]
    return {_text_column(key): _text_column(value) for key, value in pairs}


def _text_column(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _pairs(column: pa.Array) -> tuple[pa.Array, pa.Array, Ints]:
    """Returns keys and values of all rows, and the offsets of each row's."""
    if isinstance(column, pa.MapArray):
        return pairs_of(column)
    pairs, offsets = items_of(column)
    keys, values = pairs.flatten()
    return keys, values, offsets


def _text(column: pa.Array) -> BinaryArray:
    try:
        return without_nulls(as_binary(column if pa.types.is_string(column.type) else column.cast(pa.string())))
    except pa.ArrowInvalid:
        raise SinkDataError(
            "a property that is not UTF-8: Pulsar's properties are text, encode bytes first, for example with base64()"
        ) from None


def _encode_pairs(keys: BinaryArray, values: BinaryArray) -> BinaryArray:
    key_lengths, value_lengths = lengths_of(keys), lengths_of(values)
    sizes = key_lengths + value_lengths + varint_lengths(key_lengths) + varint_lengths(value_lengths) + 2
    return join(
        varints(sizes, _PAIR_TAG),
        varints(key_lengths, _PROPERTY_KEY_TAG),
        keys,
        varints(value_lengths, _VALUE_TAG),
        values,
    )
