"""A consumer as its subscription sees it, and the interface to the connection that carries its messages.

A client grants permits in messages. An entry of n messages takes n of them, and a batch is never split: the last entry
may take more than is left. The count is below zero then, and later grants fill it up.

On Shared and Key_Shared subscriptions `pending` has what was delivered and is not acknowledged: position → (its
unacknowledged messages, the hash of its key). On Exclusive and Failover it is empty: the cursor knows enough.

Invariant: In a count of unacknowledged messages `is_blocked` follows from the count. It is set when the count reaches
           the limit, and cleared when the count has fallen to `resume_at`. Both change in one class, together with the
           count, so no caller can forget one of them.
Limits:    A consumer with too many unacknowledged messages gets none until half of them are acknowledged. Messages that
           a consumer gives back are delivered again at once, so the limit alone decides then, as in Pulsar.
Read next: subscription.py, broker/dispatch/unacked_book.py
"""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol, TypeAlias

from magnetar.broker.takeover import Client
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

UNLIMITED: Final = 2**62


class UnackedCount:
    __slots__ = ("_resume_at", "is_blocked", "limit", "messages")

    def __init__(self) -> None:
        self.messages = 0
        self.limit = 0
        """0: no limit."""
        self.is_blocked = False
        """Whether this count forbids to deliver anything further."""
        self._resume_at = 0

    @property
    def room(self) -> int:
        """The messages that the limit leaves: below zero if the last batch exceeded it, or if it was lowered since."""
        return self.limit - self.messages if self.limit else UNLIMITED

    def set_limit(self, limit: int, resume_at: int) -> None:
        self.limit, self._resume_at = limit, resume_at
        is_still_blocked = self.is_blocked and limit > 0 and self.messages > resume_at
        self.is_blocked = is_still_blocked or 0 < limit <= self.messages

    def add(self, messages: int) -> None:
        """Counts messages that are delivered."""
        self.messages += messages
        if 0 < self.limit <= self.messages:
            self.is_blocked = True

    def take(self, messages: int) -> None:
        """Subtracts messages that are acknowledged, or whose consumer has left."""
        self.messages -= messages
        if self.is_blocked and self.messages <= self._resume_at:
            self.is_blocked = False

    def give_back(self, messages: int) -> None:
        """Subtracts messages that their consumer has given back."""
        self.messages -= messages
        self.is_blocked = 0 < self.limit <= self.messages


Pending: TypeAlias = tuple[int, int]
"""(unacknowledged messages of the entry, key hash or 0)."""


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
    """What a Key_Shared consumer asks for. All consumers of one subscription must agree on mode and order."""

    mode: KeySharedMode = KeySharedMode.AUTO_SPLIT
    ranges: tuple[tuple[int, int], ...] = ()
    """Only for STICKY: first and last hash of each range, both included, from 0 to 65,535."""
    allow_out_of_order: bool = False


Delivery: TypeAlias = tuple[LogEntry, int, Sequence[int] | None]
"""One entry for one consumer: the entry, how often it was given back before, and which of its messages are wanted:
64-bit words with a bit for each message of the batch that is still unacknowledged; None means all. A plain tuple,
because one is made for every entry."""


def messages_of(ack_set: Sequence[int]) -> int:
    """Returns how many messages of a batch are still unacknowledged."""
    return sum([(word & 0xFFFF_FFFF_FFFF_FFFF).bit_count() for word in ack_set])


class ConsumerSink(Protocol):
    """The front end's side of a consumer. No method may call the subscription before it returns."""

    @property
    def client(self) -> Client:
        """The connection, which other consumers may share."""

    @property
    def is_writable(self) -> bool:
        """False while the connection has too much to send. It calls `Subscription.resume` when that changes."""

    def deliver(self, deliveries: Sequence[Delivery]) -> None:
        """Sends these in order. Messages of Exclusive and Failover carry the consumer's `epoch` of this moment."""

    def active_changed(self, is_active: bool) -> None:
        """Reports to the client of a Failover consumer whether it is the active one now."""

    def reached_end_of_topic(self) -> None:
        """The topic is terminated, and the subscription has everything acknowledged."""

    def disconnect(self, why: str) -> None:
        """Closes the consumer, not the connection: the client comes back by itself. The sink then calls
        `Subscription.remove_consumer`, now or later; the subscription has removed it already."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ConsumerAbout:
    """What is used in statistics alone."""

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
        "is_connected",
        "is_lost",
        "key_shared",
        "last_acked_ms",
        "last_delivered_ms",
        "last_flow_ms",
        "messages_per_entry",
        "name",
        "notified_of_end_s",
        "pending",
        "permits",
        "priority",
        "read_compacted",
        "redelivered_messages",
        "sink",
        "start",
        "type",
        "unacked",
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
        """`start` is where a reader begins. Compacted reads need it: no cursor can be at an entry that only they
        see."""
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
        self.notified_of_end_s: float | None = None
        """When it was notified that the topic has ended, by the loop's clock."""
        self.is_connected = False
        self.is_lost = False
        """Whether its connection ended without closing it."""
        self.permits = 0
        self.pending: dict[Position, Pending] = {}
        self.unacked = UnackedCount()
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
        """Whether an entry may be delivered to it now."""
        return self.permits > 0 and not self.unacked.is_blocked and self.sink.is_writable

    @property
    def unacked_messages(self) -> int:
        return self.unacked.messages

    @property
    def is_blocked(self) -> bool:
        return self.unacked.is_blocked

    @property
    def shown(self) -> str:
        """Its name in messages for people: clients need not give one."""
        if self.name:
            return repr(self.name)
        return f"{self.consumer_id} of {self.about.address}" if self.about.address else str(self.consumer_id)

    def __repr__(self) -> str:
        return f"<consumer {self.consumer_id} {self.name!r}>"
