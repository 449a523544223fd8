"""A producer as its topic sees it: who publishes, under which name, and what of it is on the way to disk.

Publish:   a plain tuple per entry, in this order; a class of its own would cost more than the rest of the bookkeeping.
Closing:   a producer is closed when everything it published is answered, so that a client that closes has its receipts.
Read next: producers.py (who may publish), topic.py
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, TypeAlias

from magnetar.broker.liveness import Client
from magnetar.errors import MagnetarError
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.hot_path import Send


class AccessMode(enum.IntEnum):
    """The numbers are the protocol's."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3

    @property
    def is_exclusive(self) -> bool:
        return self is not AccessMode.SHARED


class Waiter(Protocol):
    """Who brings messages and can be stopped for a while, for each reason once."""

    def hold(self, reason: str) -> None: ...
    def let_go(self, reason: str) -> None: ...


class ProducerSink(Waiter, Client, Protocol):
    """The front end's side: the connection a producer is on."""

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        """These are durable, with consecutive entry ids; or dropped as duplicates, then both ids are −1."""

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None: ...

    def close_producer(self, producer: Producer) -> None:
        """Tells the client that its producer was closed; it may come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """What the client asked for."""

    producer_id: int
    name: str
    is_name_given: bool = True
    epoch: int = 0
    """Grows with each reconnection of the client's producer."""
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    """What the topic had when this producer was last admitted, for one that reconnects."""
    is_encrypted: bool = False
    metadata: Mapping[str, str] = field(default_factory=dict)
    schema_version: bytes = b""
    supports_partial: bool = False


@dataclass(frozen=True, slots=True)
class ProducerStatistics:
    entries: int
    messages: int
    bytes: int
    pending: int
    chunked: int


@dataclass(slots=True)
class Published:
    """What became of a run of messages of one producer."""

    end: int
    """Where it stopped: what is behind could not be taken now."""
    entries: int = 0
    size: int = 0
    refused: list[tuple[int, MagnetarError]] = field(default_factory=list)
    """Sequence ids of those that are not taken at all, and why."""


class PublishTarget(Protocol):
    """What a producer publishes to: topic.py."""

    @property
    def has_room(self) -> bool: ...
    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None: ...
    def publish_run(
        self, producer: Producer, sends: Sequence[Send], first: int, end: int, view: memoryview, now: float
    ) -> Published: ...
    def wait_for_room(self, waiter: Waiter) -> None: ...
    def last_sequence_id(self, producer_name: str) -> int: ...
    def remove_producer(self, producer: Producer) -> None: ...


class Producer:
    topic: PublishTarget
    """Set when it is admitted."""

    def __init__(
        self,
        options: ProducerOptions,
        sink: ProducerSink,
        *,
        address: str = "",
        client_version: str = "",
        now_ms: int = 0,
    ) -> None:
        self.options = options
        self.sink = sink
        self.address = address
        self.client_version = client_version
        self.connected_ms = now_ms
        self.topic_epoch: int | None = options.topic_epoch
        self.is_closed = False
        self.on_drained: Callable[[], None] | None = None
        """Called once when a closed producer has nothing pending any more."""
        self.pending = 0
        self.entries_in = 0
        self.messages_in = 0
        self.bytes_in = 0
        self.chunked_in = 0

    @property
    def producer_id(self) -> int:
        return self.options.producer_id

    @property
    def name(self) -> str:
        return self.options.name

    @property
    def is_remote(self) -> bool:
        """Another cluster's replicator, by its name."""
        return self.name.startswith(REPLICATOR_PREFIX)

    def succeeds(self, other: Producer) -> bool:
        """Whether this is the same producer of the same connection, made again."""
        return (
            self.name == other.name
            and self.producer_id == other.producer_id
            and self.sink is other.sink
            and other.options.epoch < self.options.epoch
        )

    def on_persisted(self, ledger_id: int, first_entry_id: int, run: Sequence[Publish]) -> tuple[int, int]:
        """Returns how many messages and bytes that were."""
        self.pending -= len(run)
        self.entries_in += len(run)
        size = messages = 0
        for publish in run:
            messages += publish[3]
            size += publish[4]
        self.messages_in += messages
        self.bytes_in += size
        self.sink.published(self, ledger_id, first_entry_id, run, size)
        self._tell_drained()
        return messages, size

    def on_failed(self, run: Sequence[Publish], error: MagnetarError) -> None:
        self.pending -= len(run)
        self.sink.publish_failed(self, run, error)
        self._tell_drained()

    def _tell_drained(self) -> None:
        if self.on_drained is not None and not self.pending:
            on_drained, self.on_drained = self.on_drained, None
            on_drained()

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(self.entries_in, self.messages_in, self.bytes_in, self.pending, self.chunked_in)


REPLICATOR_PREFIX = "pulsar.repl"

Publish: TypeAlias = tuple[Producer, int, int, int, int, float]
"""Producer, sequence id, highest sequence id, messages, bytes, and the loop's time when it arrived."""
