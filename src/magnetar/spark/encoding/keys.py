"""Keys of messages: as Pulsar carries them, and which partition each belongs to.

Carried:   as text. Bytes that are UTF-8 are that text; other bytes are base64, with a flag, as the Java client's
           `keyBytes` are. The same bytes are always carried in the same way.
Partition: Java's hash of the text without its sign, modulo the partitions: what the Java client and the Python client
           do unless told otherwise. Computed over UTF-16 units for a whole column at once.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from magnetar.spark.encoding.arrays import BinaryArray, Ints, as_binary, data_of, lengths_of, offsets_of, without_nulls

_FACTOR = np.uint32(31)
_CONTINUES = 0x80  # UTF-8: 10xxxxxx
_TWO_UNITS = 0xF0  # From here on a first byte begins what takes two units in UTF-16.


@dataclass(frozen=True, slots=True)
class Keys:
    """A column of keys. Rows without one are null."""

    text: BinaryArray
    is_base64: npt.NDArray[np.bool_] | None = None
    """None: no row is."""

    def take(self, rows: Ints) -> Keys:
        flags = None if self.is_base64 is None else self.is_base64[rows]
        return Keys(self.text.take(pa.array(rows)), flags)

    def slice(self, start: int, count: int) -> Keys:
        flags = None if self.is_base64 is None else self.is_base64[start : start + count]
        return Keys(self.text.slice(start, count), flags)


def read_keys(column: pa.Array) -> Keys:
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        return Keys(as_binary(column))
    raw = as_binary(column)
    try:
        raw.cast(pa.string())  # Arrow looks whether it is UTF-8, and copies nothing.
    except pa.ArrowInvalid:
        return _mixed(raw)
    return Keys(raw)


def _mixed(raw: BinaryArray) -> Keys:
    encoded = raw.dictionary_encode()
    texts = [_as_text(key) for key in encoded.dictionary.to_pylist()]
    codes = encoded.indices.fill_null(-1).to_numpy()
    marks = np.array([is_base64 for _, is_base64 in texts] + [False])  # The last is that of nulls.
    text = pa.array([text for text, _ in texts], pa.binary()).take(encoded.indices)
    return Keys(text, marks[codes])


def _as_text(key: bytes) -> tuple[bytes, bool]:
    try:
        key.decode()
    except UnicodeDecodeError:
        return base64.b64encode(key), True
    return key, False


def java_hashes(text: BinaryArray) -> Ints:
    """Java's hash of each row's text without its sign; of a null that of an empty text."""
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
    """Σ unit · 31^(units that follow it), modulo 2^32, for each run of `lengths`."""
    hashes = np.zeros(len(lengths), np.uint32)
    if not len(units):
        return hashes.astype(np.int64)
    ends = np.cumsum(lengths)
    following = np.repeat(ends, lengths) - np.arange(1, len(units) + 1)
    weighted = units * _powers(int(lengths.max()))[following]
    filled = lengths > 0
    hashes[filled] = np.add.reduceat(weighted, (ends - lengths)[filled])
    return (hashes & np.uint32(0x7FFFFFFF)).astype(np.int64)


def _powers(count: int) -> npt.NDArray[np.uint32]:
    powers = np.full(count, _FACTOR, np.uint32)
    powers[0] = 1
    return np.multiply.accumulate(powers)
