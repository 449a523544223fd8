"""Message properties: a column of maps, or of lists of pairs, as protobuf's repeated field 1 of a message.

Text:      keys and values are strings in Pulsar; bytes must be UTF-8. A value that is null becomes an empty string.
Whole:     all pairs of a column are encoded at once; those of one row stand one behind the other, so a row is a range.
"""

from __future__ import annotations

from typing import Any

import pyarrow as pa

from magnetar.errors import SinkDataError
from magnetar.spark.encoding.arrays import BinaryArray, Ints, as_binary, group, join, lengths_of, without_nulls
from magnetar.spark.encoding.nested import items_of, pairs_of
from magnetar.spark.encoding.varints import varint_lengths, varints

_PAIR_TAG = b"\x0a"  # Of SingleMessageMetadata; KeyValue has the same for its key.
_KEY_TAG = b"\x0a"
_VALUE_TAG = b"\x12"


def encode_properties(column: pa.Array) -> BinaryArray:
    """A row's properties as fields of its metadata; nothing for a null and for none."""
    keys, values, offsets = _pairs(column)
    if keys.null_count:
        raise SinkDataError("a property without a name: the keys of the column properties must not be null")
    return group(_encode_pairs(_text(keys), _text(values)), offsets)


def properties_of_row(column: pa.Array, row: int) -> dict[str, str]:
    """One row's, for a message that is encoded by itself."""
    given: Any = column[row].as_py() or ()
    pairs = [(pair["key"], pair["value"]) if isinstance(pair, dict) else pair for pair in given]
    return {_as_text(key): _as_text(value) for key, value in pairs}


def _as_text(value: str | bytes | None) -> str:
    return value.decode() if isinstance(value, bytes) else value or ""


def _pairs(column: pa.Array) -> tuple[pa.Array, pa.Array, Ints]:
    """Keys and values of all rows, and which of them are whose."""
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
        varints(sizes, _PAIR_TAG), varints(key_lengths, _KEY_TAG), keys, varints(value_lengths, _VALUE_TAG), values
    )
