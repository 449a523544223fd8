"""Messages as an application gets them, and the ids that name them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData, MessageMetadata

_U64 = 2**64
_I63 = 2**63


class MessageId(NamedTuple):
    """Compares in the order of the messages of one partition."""

    ledger_id: int
    entry_id: int
    batch_index: int = -1
    """-1 if the entry is not a batch, or all of it is meant."""
    partition: int = -1

    def __str__(self) -> str:
        text = f"{self.ledger_id}:{self.entry_id}"
        if self.partition >= 0 or self.batch_index >= 0:
            text += f":{self.partition}"
        return f"{text}:{self.batch_index}" if self.batch_index >= 0 else text

    @classmethod
    def parse(cls, text: str) -> MessageId:
        """Parses what `str` returns: ledger:entry[:partition[:batch index]]."""
        try:
            ledger_id, entry_id, partition, batch_index, *more = [*map(int, text.split(":")), *(-1,) * 2][:4]
        except ValueError:
            more = [0]
        if more or text.count(":") not in (1, 2, 3):
            raise ValueError(f"{text!r} is not a message id: write LEDGER:ENTRY[:PARTITION[:INDEX]]")
        return cls(ledger_id, entry_id, batch_index, partition)

    def to_wire(self) -> MessageIdData:
        data = MessageIdData(ledgerId=self.ledger_id % _U64, entryId=self.entry_id % _U64)
        if self.partition >= 0:
            data.partition = self.partition
        if self.batch_index >= 0:
            data.batch_index = self.batch_index
        return data


EARLIEST = MessageId(-1, -1)
LATEST = MessageId(_I63 - 1, _I63 - 1)


def before(message_id: MessageId) -> MessageId:
    """Returns the last position that is not wanted if this message is the first wanted one."""
    if message_id in (EARLIEST, LATEST):
        return message_id
    if message_id.batch_index > 0:
        return message_id._replace(batch_index=message_id.batch_index - 1)
    return message_id._replace(entry_id=message_id.entry_id - 1, batch_index=-1)


def id_from_wire(data: MessageIdData, partition: int) -> MessageId:
    return MessageId(_signed(data.ledgerId), _signed(data.entryId), data.batch_index, partition)


def _signed(value: int) -> int:
    return value - _U64 if value >= _I63 else value


@dataclass(frozen=True, slots=True)
class Message:
    id: MessageId
    topic: str
    """The name of the partition, if the topic has partitions."""
    payload: bytes
    key: str | None = None
    ordering_key: bytes = b""
    properties: Mapping[str, str] = field(default_factory=dict)
    producer_name: str = ""
    sequence_id: int = 0
    publish_ms: int = 0
    event_ms: int = 0
    redelivery_count: int = 0
    index: int | None = None
    """The index of this message in its topic, if the broker sends it."""
    batch_size: int = 0
    """0: not from a batch."""
    is_null: bool = False
    """Whether it has no value, which deletes its key from a compacted topic."""
    is_encrypted: bool = False
    """Whether the payload is as the producer encrypted it; a batch is then one message."""
    chunk_ids: tuple[MessageId, ...] = ()
    """The ids of the chunks, if it came in chunks; the last one is `id`."""
    metadata: MessageMetadata | None = field(default=None, repr=False, compare=False)
    """The metadata of the whole entry, with the fields that are not above."""
