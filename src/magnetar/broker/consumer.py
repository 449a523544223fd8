"""A consumer as its subscription sees it, and the seam towards whoever carries its messages.

Permits:   a client grants them in messages; an entry of n messages takes n, and the last entry may take more than is
           left (the count goes below zero then, and later grants fill it up), because a batch is never split.
Pending:   on Shared and Key_Shared subscriptions, what was delivered and not acknowledged: position → (messages of it
           that are unacknowledged, hash of its key). Exclusive and Failover keep none: there the cursor knows enough.
Blocked:   a consumer with too many unacknowledged messages gets none until half of them are acknowledged.
Read next: subscription.py, dispatch/
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from magnetar.broker.liveness import Client
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

Pending: TypeAlias = tuple[int, int]
"""(messages of the entry that are unacknowledged, key hash or 0)."""


class SubscriptionType(enum.IntEnum):
    """The numbers are the wire's."""

    EXCLUSIVE = 0
    SHARED = 1
    FAILOVER = 2
    KEY_SHARED = 3

    @property
    def shown(self) -> str:
        """As Pulsar's clients and JSON spell it."""
        return "Key_Shared" if self is SubscriptionType.KEY_SHARED else self.name.capitalize()

    @property
    def is_individual(self) -> bool:
        """Several consumers at a time, each message acknowledged by itself."""
        return self in (SubscriptionType.SHARED, SubscriptionType.KEY_SHARED)


class KeySharedMode(enum.IntEnum):
    """The numbers are the wire's."""

    AUTO_SPLIT = 0
    STICKY = 1


@dataclass(frozen=True, slots=True)
class KeySharedSettings:
    """What a Key_Shared consumer asks for; all consumers of one subscription must agree on mode and order."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    """Of STICKY: first and last hash of each range, both included, within 0 to 65,535."""
    allow_out_of_order: bool = False


Delivery: TypeAlias = tuple[LogEntry, int, Sequence[int] | None]
"""One entry for one consumer: the entry, how often it was given back before, and which messages of it are wanted:
64-bit words, a bit set for each message of the batch that is still unacknowledged; None: all of them. A plain tuple,
because there are very many of them."""


def messages_of(ack_set: Sequence[int]) -> int:
    """How many messages of a batch are still unacknowledged."""
    return sum([(word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in ack_set])


class ConsumerSink(Protocol):
    """The front end's side of a consumer. Nothing here may call back into the subscription before it returns."""

    @property
    def client(self) -> Client:
        """The connection, which other consumers may share."""

    @property
    def is_writable(self) -> bool:
        """False while the connection has too much unsent; call `Subscription.resume` when it changes to True."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Send these, in order. Messages of Exclusive and Failover carry the consumer's `epoch` of this moment."""

    def active_changed(self, is_active: bool) -> None:
        """Of Failover: tell the client whether it is the active one now."""

    def reached_end_of_topic(self) -> None:
        """The topic is terminated, and the subscription has everything acknowledged."""

    def disconnect(self, why: str) -> None:
        """Close the consumer (not the connection): the client comes back by itself. The sink then calls
        `Subscription.remove_consumer`, now or later; the subscription has already let go of it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAbout:
    """What only statistics show."""

    address: str = ""
    client_version: str = ""
    connected_ms: int = 0
    app_id: str = ""
    properties: Mapping[str, str] = field(default_factory=dict)


class Consumer:
    """One consumer on one subscription; all counts are in messages unless they say otherwise."""

    __slots__ = (
        "about",
        "acked_messages",
        "consumer_id",
        "delivered_bytes",
        "delivered_entries",
        "delivered_messages",
        "epoch",
        "first_delivered_ms",
        "first_flow_ms",
        "is_blocked",
        "is_connected",
        "is_told_end",
        "key_shared",
        "last_acked_ms",
        "last_delivered_ms",
        "last_flow_ms",
        "messages_per_entry",
        "name",
        "pending",
        "permits",
        "priority",
        "read_compacted",
        "redelivered_messages",
        "sink",
        "start",
        "type",
        "unacked_messages",
    )

    def __init__(
        self,
        consumer_id: int,
        name: str,
        sink: ConsumerSink,
        subscription_type: SubscriptionType,
        *,
        priority: int = 0,
        key_shared: KeySharedSettings | None = None,
        epoch: int = 0,
        read_compacted: bool = False,
        start: Position | None = None,
        about: ConsumerAbout | None = None,
    ) -> None:
        """`start`: where a reader begins. It matters to compacted reads, as no cursor can be where only those are."""
        self.consumer_id = consumer_id
        self.name = name
        self.sink = sink
        self.type = subscription_type
        self.priority = priority
        self.key_shared = key_shared or KeySharedSettings()
        self.epoch = epoch
        self.read_compacted = read_compacted
        self.start = start
        self.about = about or ConsumerAbout()
        self.is_told_end = False
        self.is_connected = False
        self.permits = 0
        self.pending: dict[Position, Pending] = {}
        self.unacked_messages = 0
        self.is_blocked = False
        self.messages_per_entry = 0.0  # Moving average; 0: nothing was delivered yet.
        self.delivered_entries = 0
        self.delivered_messages = 0
        self.delivered_bytes = 0
        self.redelivered_messages = 0
        self.acked_messages = 0
        self.first_delivered_ms = 0
        self.last_delivered_ms = 0
        self.last_acked_ms = 0
        self.first_flow_ms = 0
        self.last_flow_ms = 0

    @property
    def is_available(self) -> bool:
        """Whether it may be given something now."""
        return self.permits > 0 and not self.is_blocked and self.sink.is_writable

    def __repr__(self) -> str:
        return f"<consumer {self.consumer_id} {self.name!r}>"
