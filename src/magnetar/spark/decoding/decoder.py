"""EntryDecoder: runs of stored entries in, Arrow record batches out.

Order:     for each entry: checksum, metadata, decompression, the place of each message (row_buffer.py); all other work
           happens once for thousands of rows, when a batch is made.
Invariant: markers of brokers and transactions, messages that compaction removed, and messages outside the ranges are
           left out. An entry carries the index of its last message; entries without one are counted from the run's
           first.
Read next: row_buffer.py, fixed_columns.py, typed_columns.py; inputs.py
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

import pyarrow as pa

from magnetar.errors import EncryptedMessageError, MalformedEntryError
from magnetar.spark.decoding.columns import FIELD, Columns
from magnetar.spark.decoding.fixed_columns import RAW_COLUMNS, settle, table_for
from magnetar.spark.decoding.inputs import MESSAGE_BYTES_MAX, ChunkJoiner, DecodeOptions, EntryRun, Place, is_chunk
from magnetar.spark.decoding.row_buffer import Part, PendingRows
from magnetar.spark.decoding.typed_columns import TypedColumns
from magnetar.topic.entry_format.kafka import in_pulsar_form
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar.entry import EntryHead, messages_in, parse_entry
from magnetar.wire.pulsar.frames import Buffer, text_of, verify_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import NONE, MessageMetadata

_PAYLOAD_BYTES_MAX: Final = 128 * 2**20
"""The limit of an entry when decompressed: brokers limit its stored size only."""


class EntryDecoder:
    """Decodes one split. Its MalformedEntryError, EncryptedMessageError, DataLossError and SchemaError name the
    place."""

    def __init__(self, columns: Columns, options: DecodeOptions) -> None:
        self._columns = columns
        self._schema = columns.arrow
        self._options = options
        self._typed = TypedColumns(columns, options.writer_schema)
        raw = {column.source for column in columns.columns if column.source != FIELD}
        self._table = table_for(raw | self._typed.sources)
        self._pending = PendingRows()
        self._chunks = ChunkJoiner(options.entries_before, fail_on_data_loss=options.fail_on_data_loss)

    def feed(self, run: EntryRun) -> Iterator[pa.RecordBatch]:
        """Yields full batches. Runs come in the order of the topic."""
        next_index = run.first_index
        rows_max, bytes_max = self._options.rows_max, self._options.bytes_max
        for number, data in enumerate(run.entries):
            place = Place(run.topic, run.ledger_id, run.first_entry_id + number)
            next_index = self._open(run, number, place, data, next_index)
            if len(self._pending) >= rows_max or self._pending.size_bytes >= bytes_max:
                yield from self._batches()

    def finish(self) -> Iterator[pa.RecordBatch]:
        """Yields the rest. Messages of which the last chunk did not come belong to the split that has it."""
        yield from self._batches()

    def _open(self, run: EntryRun, number: int, place: Place, data: Buffer, next_index: int) -> int:
        """Returns the index of the message after this entry's last one."""
        try:
            data = in_pulsar_form(data, _PAYLOAD_BYTES_MAX)
            head = parse_entry(data)
            if not run.is_verified and not verify_checksum(memoryview(data)[head.body_offset :]):
                raise MalformedEntryError("the checksum is wrong")
            count = messages_in(head.metadata)
            first = next_index if head.index is None else head.index - count + 1
            self._add(run, number, place, data, head, first)
        except MalformedEntryError as error:
            raise MalformedEntryError(
                f"{place} is damaged: {error}; run `magnetar pipeline scrub` to find out whether another replica "
                "is intact"
            ) from error
        return first + count

    def _add(self, run: EntryRun, number: int, place: Place, data: Buffer, head: EntryHead, first_index: int) -> None:
        metadata = head.metadata
        if metadata.HasField("marker_type"):
            return
        is_opaque = len(metadata.encryption_keys) > 0
        is_batch = metadata.HasField("num_messages_in_batch") and not is_opaque
        count = metadata.num_messages_in_batch if is_batch else 1
        low, high = self._wanted(run, number, metadata, count)
        if low >= high:
            return
        if is_opaque and self._options.encrypted != "raw":
            raise EncryptedMessageError(
                f"{place} is encrypted, and Spark has no key for it; with encrypted=raw its value is returned as it is"
            )
        part = Part(
            run.topic,
            run.partition,
            run.ledger_id,
            place.entry_id,
            low if is_batch else -1,
            first_index + low,
            metadata.publish_time,
            text_of(metadata.producer_name),
            metadata.sequence_id,
            metadata.schema_version,
        )
        if is_batch:
            self._pending.add_batch(part, *_payload(data, head), count, low, high)
        else:
            self._add_single(part, place, data, head, is_opaque=is_opaque)

    def _wanted(self, run: EntryRun, number: int, metadata: MessageMetadata, count: int) -> tuple[int, int]:
        options = self._options
        low, high = 0, count
        if number == 0:
            low = max(low, run.first_batch_index)
        if run.end_batch_index is not None and number == len(run.entries) - 1:
            high = min(high, run.end_batch_index)
        too_early = options.publish_ms_min is not None and metadata.publish_time < options.publish_ms_min
        too_late = options.publish_ms_end is not None and metadata.publish_time >= options.publish_ms_end
        return (0, 0) if too_early or too_late else (low, high)

    def _add_single(self, part: Part, place: Place, data: Buffer, head: EntryHead, *, is_opaque: bool) -> None:
        metadata = head.metadata
        stored = memoryview(data)[head.payload_offset :]
        if is_opaque:
            self._pending.add_single(part, metadata, stored)  # Also for a chunk: each is encrypted by itself.
        elif is_chunk(metadata):
            parts = self._chunks.add(place, metadata, stored)
            if parts is not None:
                whole = b"".join(parts)
                self._pending.add_single(part, metadata, _decompressed(metadata, whole, MESSAGE_BYTES_MAX))
        else:
            self._pending.add_single(part, metadata, _decompressed(metadata, stored, _PAYLOAD_BYTES_MAX))

    def _batches(self) -> Iterator[pa.RecordBatch]:
        if not len(self._pending):
            return
        settled = settle(self._pending.take(), self._table)
        if not len(settled.rows):
            return
        fields = self._typed.columns(settled)
        arrays = [
            fields[column.name] if column.source == FIELD else RAW_COLUMNS[column.source](settled)
            for column in self._columns.columns
        ]
        batch = pa.RecordBatch.from_arrays(arrays, schema=self._schema)
        for start in range(0, len(batch), self._options.rows_max):
            yield batch.slice(start, self._options.rows_max)


def _payload(data: Buffer, head: EntryHead) -> tuple[Buffer, int]:
    """Returns a buffer, and the place of the uncompressed payload in it."""
    if head.metadata.compression == NONE:
        return data, head.payload_offset
    return _decompressed(head.metadata, memoryview(data)[head.payload_offset :], _PAYLOAD_BYTES_MAX), 0


def _decompressed(metadata: MessageMetadata, stored: Buffer, size_max: int) -> Buffer:
    if metadata.compression == NONE:
        return stored
    return decompress(metadata.compression, stored, metadata.uncompressed_size, size_max)
