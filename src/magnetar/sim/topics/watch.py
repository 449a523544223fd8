"""Watch: what is seen of a world of topics, besides what sim/ledgers/watch.py sees, and is reported to invariants.

History:   what producers and consumers did, and what they were told: the truth to compare with. A message is named by
           its producer and sequence id, and has a payload of its own: the payload alone says which message it is.
Sent:      handed to the client at least once. Stored: a receipt came. Failed: the client said that it will never be
           stored. Otherwise unknown: it may or may not be stored.
Acked:     asked is what a consumer wanted; confirmed is what it has a receipt for, with all of it durable.
Read next: invariants.py
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from magnetar.client import Message, MessageId
from magnetar.metadata.store import Create, Delete, Put
from magnetar.names import TopicName
from magnetar.sim.ledgers.watch import Invariant, Watch
from magnetar.sim.topics.options import TopicOptions
from magnetar.sim.world import World
from magnetar.topic.log.managed_ledger import ManagedLedger, decode_managed_ledger, managed_ledger_path

if TYPE_CHECKING:
    from magnetar.broker.pulsar.front_end import PulsarFrontEnd
    from magnetar.sim.topics.observe import WatchedPublisher, WatchedSubscription, WatchedTopic
    from magnetar.topic.log_entry import LogEntry
    from magnetar.topic.position import Position


# --- events and invariants --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class TopicChange:
    topic: str
    before: ManagedLedger | None
    after: ManagedLedger | None
    by: str
    """The node whose session made it."""


@dataclass(frozen=True, slots=True)
class Load:
    """A broker has opened a topic, and is about to serve it."""

    topic: WatchedTopic
    broker: str
    acked_before: dict[str, list[tuple[int, int]]]
    """Subscription → entries whose acknowledgement was confirmed when the load began."""
    marks_before: dict[str, tuple[int, int]]
    """Subscription → the furthest mark-delete position of loads that were done when this one began."""


class TopicInvariant(Invariant):
    """The events of topics. One that is not overridden costs nothing."""

    watch: TopicWatch

    @property
    def told(self) -> History:
        return self.watch.told

    def on_receipt(self, sends: Sends, sequence_id: int, message_id: MessageId) -> None:
        """A producer was told that its message is stored."""

    def on_received(self, progress: Progress, consumer: str, message: Message) -> None:
        """An application got a message."""

    def on_broker_open(self, name: str, front_end: PulsarFrontEnd) -> None:
        """A broker serves; before the clients' first requests."""

    def on_broker_closed(self, name: str) -> None:
        """It stops serving, or was killed."""

    def on_topic_change(self, change: TopicChange) -> None: ...
    def on_loaded(self, load: Load) -> None: ...

    def on_duplicate(self, publisher: WatchedPublisher, producer: str, sequence_id: int) -> None:
        """A broker answers that it had the message before."""

    def on_look(self, subscription: WatchedSubscription) -> None:
        """Everything is healed, and the scenario looks at a subscription, again and again."""

    def on_compacted_view(self, topic: str, values: Mapping[str, bytes], found: list[tuple[str | None, bytes]]) -> None:
        """Key → its last payload, and what a reader of the compacted view got."""

    def at_audit(self) -> None:
        """Everything in every topic was read: `told.audits`."""


class TopicWatch(Watch):
    def __init__(self, world: World, options: TopicOptions, invariants: Sequence[type[Invariant]]) -> None:
        super().__init__(world, options.base, invariants)
        self.topic_options = options
        self.told = History()
        self.chains: dict[str, ManagedLedger] = {}
        """Topic → its node, as the metadata has it at this moment."""
        self.marks: dict[tuple[str, str], tuple[int, int]] = {}
        """Topic and subscription → the furthest mark-delete position that a broker found when it loaded the topic."""
        self.entries: dict[tuple[str, Position], LogEntry] = {}
        """By topic and position, if messages have keys: those that a broker has stored or delivered."""
        self._topic_paths = {managed_ledger_path(TopicName.parse(name).log_name): name for name in options.topic_names}

    def look_at_disks(self) -> None:
        if self.hears("on_stored"):
            super().look_at_disks()

    def on_operation(self, operation: Create | Put | Delete, result: Any, by: str) -> None:
        super().on_operation(operation, result, by)
        if (topic := self._topic_paths.get(operation.path)) is None:
            return
        before, after = self.chains.pop(topic, None), None
        if isinstance(operation, Create | Put):
            after = self.chains[topic] = decode_managed_ledger(operation.value)
        ledgers = "gone" if after is None else ",".join(str(span.ledger_id) for span in after.spans)
        self.note(f"{topic} by {by}: {ledgers}")
        self.tell("on_topic_change", TopicChange(topic, before, after, by))


# --- history ----------------------------------------------------------------------------------------------------------

NOT_SAID = MessageId(-1, -1)
"""The receipt of a message that was there before."""


def plain(message_id: MessageId) -> MessageId:
    return message_id._replace(partition=-1)


class Audited(NamedTuple):
    """A message that is in the topic when all is over."""

    id: MessageId
    producer: str
    sequence_id: int
    payload: bytes


@dataclass(slots=True)
class Sends:
    """Of one producer's name, over all its lives."""

    topic: str
    producer: str
    sent: int = 0
    """Sequence ids below this were handed to the client."""
    stored: dict[int, MessageId] = field(default_factory=dict)
    """By sequence id. The first receipt that said where it is, otherwise −1:−1."""
    failed: dict[int, str] = field(default_factory=dict)
    due_s: dict[int, float] = field(default_factory=dict)
    """By sequence id, if it asked to be delivered later: not before this time of the world."""
    keys: int = 0
    """Of its messages; 0: they have none."""

    def key(self, sequence_id: int) -> str | None:
        return f"k{sequence_id % self.keys}" if self.keys else None

    def payload(self, sequence_id: int) -> bytes:
        return f"{self.topic[-7:]}/{self.producer}/{sequence_id}".encode()

    @property
    def first_open(self) -> int:
        """The first that has neither a receipt nor an end."""
        return next((at for at in range(self.sent) if at not in self.stored and at not in self.failed), self.sent)


@dataclass(slots=True)
class Stay:
    """A consumer between two moments at which the broker may begin anew: attached, made active, asked to redeliver."""

    consumer: str
    subscription: str
    topic: str
    is_ordered: bool
    """Each entry once and in order, nothing left out. Not so for Shared, and where redelivery was asked for."""
    entries: list[tuple[float, tuple[int, int]]] = field(default_factory=list)
    """When, and which."""


@dataclass(slots=True)
class Progress:
    """Of one subscription."""

    topic: str
    name: str
    seen: dict[MessageId, bytes] = field(default_factory=dict)
    asked: dict[MessageId, float] = field(default_factory=dict)
    """When it was first asked to be acknowledged."""
    asked_to: list[tuple[float, MessageId]] = field(default_factory=list)
    """The same, with all before."""
    confirmed: dict[MessageId, None] = field(default_factory=dict)
    confirmed_to: MessageId = NOT_SAID
    batch_sizes: dict[tuple[int, int], int] = field(default_factory=dict)

    def is_asked(self, message_id: MessageId, until_s: float) -> bool:
        when = self.asked.get(message_id)
        if when is not None and when <= until_s:
            return True
        return any(when <= until_s and message_id <= to for when, to in self.asked_to)

    def is_confirmed(self, message_id: MessageId) -> bool:
        return message_id in self.confirmed or message_id <= self.confirmed_to

    def confirmed_entries(self) -> list[tuple[int, int]]:
        """Whole entries that were received and of which every message is confirmed."""
        return [entry for entry in self.batch_sizes if self._is_whole(entry)]

    def _is_whole(self, entry: tuple[int, int]) -> bool:
        size = self.batch_sizes[entry]
        ids = [MessageId(*entry, index) for index in range(size)] if size else [MessageId(*entry)]
        return all(self.is_confirmed(message_id) for message_id in ids)


class History:
    def __init__(self) -> None:
        self.sends: dict[tuple[str, str], Sends] = {}
        """By topic and producer."""
        self.progress: dict[tuple[str, str], Progress] = {}
        """By topic and subscription."""
        self.stays: list[Stay] = []
        self.audits: dict[str, list[Audited]] = {}
        """Topic → everything in it, in order. Only at the end."""

    def add_producer(self, topic: str, producer: str, keys: int = 0) -> Sends:
        return self.sends.setdefault((topic, producer), Sends(topic, producer, keys=keys))

    def add_subscription(self, topic: str, name: str) -> Progress:
        return self.progress.setdefault((topic, name), Progress(topic, name))

    def subscriptions_of(self, topic: str) -> Iterator[Progress]:
        return (progress for progress in self.progress.values() if progress.topic == topic)
