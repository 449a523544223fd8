"""Messages whose places are known and whose headers are not yet read: thousands of them, from many entries.

One shape: a message that is not from a batch is put down as a batch of one, with a header made from its metadata. So
           all that follows knows one kind of rows.
Dense:     if values follow one another without gaps, they are an Arrow array already.
Read next: pending.py, which makes them; headers.py, which reads on
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.spark.decoding.spans import Bytes, Flags, Ints, dense, slices
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import SingleMessageMetadata


class Part(NamedTuple):
    """What all messages of one entry have in common."""

    topic: str
    partition: int
    ledger_id: int
    entry_id: int
    first_batch_index: int
    """-1: the entry is no batch."""
    first_index: int
    publish_ms: int
    producer: str
    sequence_id: int
    schema_version: bytes

    def place(self, ordinal: int = 0) -> str:
        """The message id as text."""
        return f"{self.ledger_id}:{self.entry_id}:{self.partition}:{self.first_batch_index + ordinal}"


class Spans(NamedTuple):
    """Slices of one buffer, in its order."""

    data: Bytes
    start: Ints
    end: Ints

    def kept(self, keep: Flags) -> Spans:
        return Spans(self.data, self.start[keep], self.end[keep])

    def bytes_of(self, row: int) -> bytes:
        return self.data[self.start[row] : self.end[row]].tobytes()


@dataclass(frozen=True)
class Rows:
    """Messages, and which entry each is of."""

    headers: Spans
    """Of SingleMessageMetadata."""
    values: Spans
    is_dense: bool
    parts: Sequence[Part]
    entry: Ints
    """The number of each row's part."""
    ordinal: Ints
    """The row's number within its part."""

    def __len__(self) -> int:
        return len(self.entry)

    @cached_property
    def header_buffer(self) -> pa.Buffer:
        return pa.py_buffer(self.headers.data)

    def payloads(self, missing: Flags | None) -> pa.BinaryArray:
        """The values; null where they are missing."""
        data, start, end = self.values
        make = dense if self.is_dense else slices
        return make(pa.py_buffer(data), start, end, missing)

    def place(self, row: int) -> str:
        part: Part = self.parts[int(self.entry[row])]
        return part.place(int(self.ordinal[row]))

    def kept(self, keep: Flags) -> Rows:
        return replace(
            self,
            headers=self.headers.kept(keep),
            values=self.values.kept(keep),
            is_dense=False,
            entry=self.entry[keep],
            ordinal=self.ordinal[keep],
        )

    def rewritten(self, odd: Sequence[int]) -> Rows:
        """With those headers written in the usual way. MalformedEntryError if one is none."""
        unusual = frozenset(odd)
        headers = [self.headers.bytes_of(row) for row in range(len(self))]
        for row in sorted(unusual):
            headers[row] = self._usual(headers[row], row)
        ends = np.cumsum([len(header) for header in headers])
        starts = np.concatenate(([0], ends[:-1]))
        return replace(self, headers=Spans(np.frombuffer(b"".join(headers), np.uint8), starts, ends))

    def _usual(self, header: bytes, row: int) -> bytes:
        try:
            metadata = SingleMessageMetadata.FromString(header)
        except DecodeError as error:
            raise self._malformed(row, f"is not protobuf: {error}") from None
        if not metadata.IsInitialized():
            raise self._malformed(row, "has no size")
        metadata.DiscardUnknownFields()
        return metadata.SerializeToString()

    def _malformed(self, row: int, what: str) -> MalformedEntryError:
        topic = self.parts[int(self.entry[row])].topic
        return MalformedEntryError(f"{topic}: the metadata of message {self.place(row)} {what}")
