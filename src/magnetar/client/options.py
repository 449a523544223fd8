"""Settings of client, producers and consumers. Times are in seconds; every wait has one, every queue a bound."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from magnetar.wire.pulsar.frames import FRAME_BYTES_MAX
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    NONE,
    CommandSubscribe,
    CompressionType,
    KeySharedMeta,
    ProducerAccessMode,
    Schema,
    Shared,
)

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
