"""EntryHead: what an entry's header contains, without the payload; and EntryStamp, which writes the broker's part.

Everything that counts messages (the index, permits, backlogs, rates, statistics) uses `messages`. A name or key that is
not UTF-8 is kept as bytes, as protobuf does, where two such values must stay different.

Order:     Indexes only grow.
Failure:   Reading a damaged header raises MalformedEntryError. The broker's own header can be read anyway
           (`broker_header_of`).
Read next: wire/pulsar/entry.py, for the form
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final, NamedTuple

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.entry_format import kafka
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.encode import LAST_DIGITS, LOWER_DIGITS, varint
from magnetar.wire.pulsar.entry import EntryHead as PulsarHead
from magnetar.wire.pulsar.entry import body_offset_of, broker_entry_header, parse_body_as, parse_entry_as
from magnetar.wire.pulsar.frames import text_of
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BrokerEntryMetadata

Text = str | bytes
"""Bytes if it is not UTF-8."""
_HEADER_BYTES: Final = 6  # Magic and size.


class Chunk(NamedTuple):
    """Describes an entry that is one of several parts of a message."""

    uuid: Text
    number: int
    parts: int


class EntryHead(PulsarHead):
    """Gives the fields of Pulsar's form names that belong to no form. Only this folder reads its `metadata`."""

    __slots__ = ()

    @property
    def messages(self) -> int:
        """How many messages the entry counts for: those of a batch, otherwise one."""
        return max(1, self.metadata.num_messages_in_batch)

    @property
    def batch_size(self) -> int | None:
        """The size that the entry states; None if it is no batch."""
        return self.metadata.num_messages_in_batch if self.metadata.HasField("num_messages_in_batch") else None

    @property
    def is_readable_batch(self) -> bool:
        """Whether its messages can be read; an encrypted batch is one message to all but its consumers."""
        return self.batch_size is not None and not self.is_encrypted

    @property
    def is_encrypted(self) -> bool:
        return bool(self.metadata.encryption_keys)

    @property
    def is_marker(self) -> bool:
        """Whether brokers wrote it for brokers: no consumer gets it."""
        return self.metadata.HasField("marker_type")

    @property
    def chunk(self) -> Chunk | None:
        metadata = self.metadata
        if metadata.num_chunks_from_msg > 1 and metadata.HasField("uuid") and metadata.HasField("chunk_id"):
            return Chunk(metadata.uuid, metadata.chunk_id, metadata.num_chunks_from_msg)
        return None

    @property
    def uuid(self) -> Text:
        """The id of the message that this chunk is a part of; empty if none is stated."""
        return self.metadata.uuid

    @property
    def key(self) -> Text | None:
        """The key of an entry that is one message."""
        return self.metadata.partition_key if self.metadata.HasField("partition_key") else None

    @property
    def schema_version(self) -> bytes | None:
        return self.metadata.schema_version if self.metadata.HasField("schema_version") else None

    @property
    def publish_ms(self) -> int:
        """When the producer made it, by its own clock."""
        return int(self.metadata.publish_time)

    @property
    def deliver_at_ms(self) -> int:
        """When it is due; 0 is at once."""
        return int(self.metadata.deliver_at_time)

    @property
    def producer(self) -> Text:
        return self.metadata.producer_name

    @property
    def producer_name(self) -> str:
        """The name as Java reads it: with replacement characters where it is not UTF-8."""
        return text_of(self.metadata.producer_name)

    @property
    def sequence_id(self) -> int:
        return self.metadata.sequence_id

    @property
    def highest_sequence_id(self) -> int:
        """The sequence id of a batch's last message; 0 if not stated."""
        return self.metadata.highest_sequence_id

    @property
    def completes_message(self) -> bool:
        """Whether its sequence id counts for deduplication.

        Markers have none, and only the last chunk of a chunked message counts.
        """
        metadata = self.metadata
        if self.is_marker:
            return False
        return metadata.num_chunks_from_msg <= 1 or metadata.chunk_id == metadata.num_chunks_from_msg - 1


class KafkaHead(EntryHead):
    """The head of an entry that holds a batch of Kafka's. Its messages have keys and times of their own."""

    __slots__ = ("_messages",)
    _messages: int

    @classmethod
    def of(cls, head: PulsarHead, data: Buffer) -> KafkaHead:
        made = cls(head.index, head.broker_ms, head.body_offset, head.metadata, head.payload_offset)
        made._messages = kafka.messages_in(memoryview(data)[head.payload_offset :])
        return made

    @property
    def messages(self) -> int:
        return self._messages

    @property
    def batch_size(self) -> int | None:
        return self._messages

    @property
    def is_readable_batch(self) -> bool:
        return False

    @property
    def completes_message(self) -> bool:
        """It has no sequence id of Pulsar's."""
        return False


def read_head(data: Buffer) -> EntryHead:
    """Reads the header of an entry as it is stored."""
    head = parse_entry_as(EntryHead, data)
    return KafkaHead.of(head, data) if head.metadata.properties and kafka.is_kafka(data) else head


read_body: Final[Callable[[Buffer], EntryHead]] = partial(parse_body_as, EntryHead)
"""Reads the header of what a producer sent, before it is an entry."""


def body_of(data: Buffer) -> memoryview:
    """Returns what a producer sent of a stored entry. It need not be readable."""
    return memoryview(data)[body_offset_of(data) :]


def broker_header_of(data: Buffer) -> tuple[int | None, int | None]:
    """Returns the index of the last message and the broker's time, if the entry has them.

    It works even if the message cannot be read, since the broker's header is ours.
    """
    end = body_offset_of(data)
    if not end:
        return None, None
    try:
        header = BrokerEntryMetadata.FromString(memoryview(data)[_HEADER_BYTES:end])  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"broker entry metadata that is not protobuf: {error}") from None
    index = header.index if header.HasField("index") else None
    return index, header.broker_timestamp if header.HasField("broker_timestamp") else None


_LOWER_BITS: Final = 14
_LOWER_MASK: Final = 2**_LOWER_BITS - 1
_TWO_BYTES_MIN: Final = 2**7


class EntryStamp:
    """Writes the broker's header before each entry that is appended, with the index of its last message and the time.

    The header is joined with what the producer sent; that is the only copy of the entry. The header is made once per
    millisecond, but for the lower 14 bits of the index, which are looked up. The first 128 messages of a topic, whose
    index is one byte, have one made each time.
    """

    def __init__(self, wall_ms: Callable[[], int]) -> None:
        self._wall_ms = wall_ms
        self._made_ms = -1
        self._upper = -1
        """The index in the current header, without the lower bits."""
        self._before = b""
        self._digits = LAST_DIGITS
        """The encodings of the lower bits, two bytes each, as far as they were used."""
        self._after = b""

    def on(self, index_of_last: int, body: Buffer) -> bytes:
        """Returns the entry as it is stored. `body` is what the producer sent."""
        now_ms = self._wall_ms()
        upper = index_of_last >> _LOWER_BITS
        if now_ms != self._made_ms or upper != self._upper:
            if index_of_last < _TWO_BYTES_MIN:
                return b"".join((broker_entry_header(index_of_last, now_ms), body))
            self._make(upper, now_ms)
        return b"".join((self._before, self._digits[index_of_last & _LOWER_MASK], self._after, body))

    def on_parts(self, index_of_last: int, parts: Sequence[Buffer]) -> bytes:
        """Does the same for what consists of several parts, with one copy, too."""
        return b"".join((self.on(index_of_last, b""), *parts))

    def _make(self, upper: int, now_ms: int) -> None:
        self._upper, self._made_ms = upper, now_ms
        self._digits, self._after = (LOWER_DIGITS, varint(upper)) if upper else (LAST_DIGITS, b"")
        header = broker_entry_header(max(_TWO_BYTES_MIN, upper << _LOWER_BITS), now_ms)
        self._before = header[: -2 - len(self._after)]
