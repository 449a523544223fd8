"""A producer as its topic sees it: its name, its access, and its messages that are not stored yet.

A `Publish` is a plain tuple per entry, unpacked where it is read. A named one costs three times as much to make, and
there is one for each entry.

Order:     A producer is closed when everything it published is answered, so that a client that closes has its receipts.
Read next: producers.py (admission), publisher.py
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import Final, Protocol, TypeAlias

from magnetar.broker.takeover import Client
from magnetar.errors import MagnetarError
from magnetar.wire.bookkeeper.frames import Buffer


class AccessMode(enum.IntEnum):
    """Lists the numbers of the protocol."""

    SHARED = 0
    EXCLUSIVE = 1
    WAIT_FOR_EXCLUSIVE = 2
    EXCLUSIVE_WITH_FENCING = 3


class Waiter(Protocol):
    """Brings messages, and can be stopped for a while, for each reason once."""

    def hold(self, reason: str) -> None: ...
    def let_go(self, reason: str) -> None: ...


class ProducerSink(Waiter, Client, Protocol):
    """The front end's side: the connection a producer is on."""

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        """Reports messages as durable, with consecutive entry ids; or as dropped duplicates, with both ids −1."""

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None: ...

    def close_producer(self, producer: Producer) -> None:
        """Informs the client that its producer was closed; it may come back."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProducerOptions:
    """Holds what the client requested."""

    producer_id: int
    name: str
    epoch: int = 0
    """Grows with each reconnection of the client's producer."""
    access_mode: AccessMode = AccessMode.SHARED
    topic_epoch: int | None = None
    """The topic's epoch when this producer was last admitted, if it reconnects."""
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
class TakenRun:
    """The outcome of a run of messages of one producer that was offered to its topic."""

    end: int
    """Where it stopped: the messages from there on could not be taken now."""
    entries: int = 0
    size: int = 0
    refused: list[tuple[int, MagnetarError]] = field(default_factory=list)
    """The sequence ids of refused messages, with the reasons."""


class PublishTarget(Protocol):
    """Takes messages of producers: publisher.py."""

    @property
    def has_room(self) -> bool: ...
    def publish(self, publish: Publish, body: Buffer, *, counts: bool = True) -> None: ...
    def publish_run(
        self, producer: Producer, offers: Sequence[Offer], first: int, end: int, view: memoryview, now: float
    ) -> TakenRun: ...
    def wait_for_room(self, waiter: Waiter) -> None: ...
    def last_sequence_id(self, producer: str) -> int: ...


class ProducerTopic(Protocol):
    """Has producers: broker/topics/topic.py."""

    @property
    def publisher(self) -> PublishTarget: ...
    def remove_producer(self, producer: Producer) -> None: ...


class Producer:
    topic: ProducerTopic
    """Is set when it is admitted. Producers of brokers, which publish on their own, have none."""

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
        """Is called once when a closed producer has nothing pending any more."""
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
        """Whether it is another cluster's replicator, by its name."""
        return self.name.startswith(REPLICATOR_PREFIX)

    def succeeds(self, other: Producer) -> bool:
        """Whether this is the same producer of the same connection, made again."""
        return (
            self.name == other.name
            and self.producer_id == other.producer_id
            and self.sink is other.sink
            and other.options.epoch < self.options.epoch
        )

    def published(self, ledger_id: int, first_entry_id: int, run: Sequence[Publish]) -> tuple[int, int]:
        """Reports messages as durable, with consecutive entry ids; or as duplicates, with both ids −1.

        Returns the number of messages and their bytes.
        """
        self.pending -= len(run)
        self.entries_in += len(run)
        size = messages = 0
        for _, _, _, messages_of_entry, size_of_entry, _ in run:
            messages += messages_of_entry
            size += size_of_entry
        self.messages_in += messages
        self.bytes_in += size
        self.sink.published(self, ledger_id, first_entry_id, run, size)
        self._check_drained()
        return messages, size

    def publish_failed(self, run: Sequence[Publish], error: MagnetarError) -> None:
        self.pending -= len(run)
        self.sink.publish_failed(self, run, error)
        self._check_drained()

    def _check_drained(self) -> None:
        if self.on_drained is not None and not self.pending:
            on_drained, self.on_drained = self.on_drained, None
            on_drained()

    def statistics(self) -> ProducerStatistics:
        return ProducerStatistics(self.entries_in, self.messages_in, self.bytes_in, self.pending, self.chunked_in)


REPLICATOR_PREFIX = "pulsar.repl"

Publish: TypeAlias = tuple[Producer, int, int, int, int, float]
"""Producer, sequence id, highest sequence id, messages, bytes, and the loop's time when it arrived."""

producer_of: Final[Callable[[Publish], Producer]] = itemgetter(0)

Offer: TypeAlias = tuple[int, int, int, int, int, int]
"""One entry of a run that a front end offers to a topic.

It has a number of the front end's own, which topics ignore; sequence id, highest sequence id, messages; and the offset
and length of its bytes. A scan of received bytes returns this form, so that nothing is made for each entry.
"""
