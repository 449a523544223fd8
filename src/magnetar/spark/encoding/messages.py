"""Columns of messages, and the bytes they have inside a batch.

Format:    (metadata_size u32 | SingleMessageMetadata | payload) … (wire/pulsar/batch.py). The metadata's fields are
           made column by column and joined row by row, in the order in which protobuf writes them.
Nulls:     a value that is null is a tombstone (null_value); a key that is null is no key; no event time is no field.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa

from magnetar.spark.encoding.arrays import (
    BinaryArray,
    Ints,
    data_of,
    fixed_width,
    flags,
    is_null,
    join,
    lengths_of,
    offsets_of,
    where,
    without_nulls,
)
from magnetar.spark.encoding.keys import Keys
from magnetar.spark.encoding.properties import encode_properties
from magnetar.spark.encoding.varints import varints

_KEY_TAG = b"\x12"
_SIZE_TAG = b"\x18"
_EVENT_TAG = b"\x28"
_BASE64_FIELD = b"\x30\x01"
_NULL_VALUE_FIELD = b"\x48\x01"
_OVERHEAD_BYTES = 40  # More than size, tags and varints of a message take; the rest is counted.


@dataclass(frozen=True, slots=True)
class MessageKey:
    """Of one message, as it is carried."""

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
        return Messages(
            self.values.take(chosen),
            None if self.keys is None else self.keys.take(rows),
            None if self.event_ms is None else self.event_ms.take(chosen),
            None if self.properties is None else self.properties.take(chosen),
        )

    def slice(self, start: int, count: int) -> Messages:
        return Messages(
            self.values.slice(start, count),
            None if self.keys is None else self.keys.slice(start, count),
            None if self.event_ms is None else self.event_ms.slice(start, count),
            None if self.properties is None else self.properties.slice(start, count),
        )

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
        """At most how many bytes each takes in a batch."""
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

    def __len__(self) -> int:
        return len(self.offsets) - 1


def encode_messages(messages: Messages) -> EncodedMessages:
    payloads = without_nulls(messages.values)
    parts = [*_key_parts(messages), varints(lengths_of(payloads), _SIZE_TAG), *_last_fields(messages)]
    if messages.encoded_properties is not None:
        parts.insert(0, messages.encoded_properties)
    sizes = np.sum([lengths_of(part) for part in parts], axis=0)
    joined = join(_sizes(sizes), *parts, payloads)
    return EncodedMessages(data_of(joined), offsets_of(joined))


def _sizes(sizes: Ints) -> BinaryArray:
    return fixed_width(sizes.astype(">u4").view(np.uint8).reshape(-1, 4))


def _key_parts(messages: Messages) -> list[BinaryArray]:
    if messages.keys is None:
        return []
    text = messages.keys.text
    lengths = lengths_of(without_nulls(text))
    return [where(varints(lengths, _KEY_TAG), ~is_null(text)), without_nulls(text)]


def _last_fields(messages: Messages) -> list[BinaryArray]:
    """Those behind the payload's size."""
    fields: list[BinaryArray] = []
    if messages.event_ms is not None:
        numbers = messages.event_ms.fill_null(0).to_numpy()
        fields.append(where(varints(numbers, _EVENT_TAG), numbers != 0))
    if messages.keys is not None and messages.keys.is_base64 is not None:
        fields.append(flags(messages.keys.is_base64, _BASE64_FIELD))
    if messages.values.null_count:
        fields.append(flags(is_null(messages.values), _NULL_VALUE_FIELD))
    return fields
