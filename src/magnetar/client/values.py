"""The values of the client's interface: messages, the ids that name them, and the settings. Times are in seconds."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import NamedTuple

from magnetar.wire.pulsar.frames import FRAME_BYTES_MAX
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    NONE,
    CommandSubscribe,
    CompressionType,
    KeySharedMeta,
    MessageIdData,
    MessageMetadata,
    ProducerAccessMode,
    Schema,
    Shared,
)

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


EXCLUSIVE = CommandSubscribe.Exclusive
SHARED = CommandSubscribe.Shared
FAILOVER = CommandSubscribe.Failover
KEY_SHARED = CommandSubscribe.Key_Shared


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientOptions:
    connect_timeout_s: float = 10.0  # For TCP and CONNECTED.
    request_timeout_s: float = 30.0  # For anything that the broker answers with a request's id.
    open_timeout_s: float = 30.0  # For a producer or consumer, with all its tries.
    reconnect_timeout_s: float = 120.0  # After this time without a broker, a producer or consumer gives up.
    backoff_first_s: float = 0.1
    backoff_longest_s: float = 10.0
    keep_alive_s: float = 30.0  # A connection without a byte for twice this time is dead.
    redirects_max: int = 20
    lookups_max: int = 64  # Lookups in progress; more wait for their turn.
    frame_bytes_max: int = FRAME_BYTES_MAX
    listener_name: str = ""
    """The name of the advertised listener to ask for; empty for the default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    name: str = ""
    """If it is empty, the broker makes a name. Deduplication needs a name that stays the same after a restart."""
    batching: bool = True
    batch_delay_s: float = 0.001  # How long the first message of a batch waits for others.
    batch_messages_max: int = 1_000
    batch_bytes_max: int = 128 * 1024
    chunking: bool = False
    """Sends a message that is larger than the broker accepts as several entries. Consumers join them."""
    compression: CompressionType = NONE
    pending_messages_max: int = 1_000  # Without a receipt yet; `send` waits for room, `send_nowait` refuses.
    send_timeout_s: float = 30.0
    access_mode: ProducerAccessMode = Shared
    first_sequence_id: int | None = None
    """None: it follows the last one that the broker knows for this name, or begins with 0."""
    properties: Mapping[str, str] = field(default_factory=dict)
    schema: Schema | None = None
    initial_subscription: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerOptions:
    type: CommandSubscribe.SubType = EXCLUSIVE
    name: str = ""
    from_earliest: bool = False
    """Where a new subscription begins; an existing one continues where it is."""
    queue_messages_max: int = 1_000  # Received ahead; a batch may exceed it.
    priority: int = 0
    read_compacted: bool = False
    batch_index_acks: bool = True
    """Acknowledges messages of a batch one by one; otherwise an entry when all of its messages are acknowledged."""
    redelivery_delay_s: float = 60.0  # How long `negative_acknowledge` waits before it asks for the message again.
    properties: Mapping[str, str] = field(default_factory=dict)
    subscription_properties: Mapping[str, str] = field(default_factory=dict)
    key_shared: KeySharedMeta | None = None
    schema: Schema | None = None
    force_topic_creation: bool = True
