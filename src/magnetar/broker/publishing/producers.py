"""The producers of a topic: names that are taken, exclusive access, epochs, and messages that are not stored yet.

Any number may share a topic, each name once. A producer of the same connection, id and name with a higher epoch
replaces itself; a name held by another connection passes only if that connection is dead. An exclusive producer is
alone, or refused finally. `WAIT_FOR_EXCLUSIVE` queues; `EXCLUSIVE_WITH_FENCING` removes the others, also those that are
being admitted: after each wait an admission checks again whether it is still allowed. A `Publish` is a plain tuple per
entry, unpacked where it is read. A named one costs three times as much to make, and there is one for each entry.

Invariant: Every new exclusive producer gets the next topic epoch, durable before it is admitted. Epochs are stored one
           at a time, in order; a producer waits for at most the one that is being stored, as those between are fenced.
           One that reconnects with an older epoch is fenced: another has published since.
Order:     A producer is closed when everything it published is answered, so that a client that closes has its receipts.
Limits:    The topic's maximum of producers (of users, not of replicators or brokers), and per client address.
Read next: publisher.py, broker/topics/topic.py
"""

from __future__ import annotations

import asyncio
import enum
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from operator import itemgetter
from typing import TYPE_CHECKING, Final, Protocol, TypeAlias

from magnetar.broker.takeover import Client, is_dead
from magnetar.errors import MagnetarError, ProducerBusyError, ProducerFencedError
from magnetar.words import counted

if TYPE_CHECKING:
    from magnetar.broker.topics.topic import Topic


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


@dataclass(slots=True)
class TakenRun:
    """The outcome of a run of messages of one producer that was offered to its topic."""

    end: int
    """Where it stopped: the messages from there on could not be taken now."""
    entries: int = 0
    size: int = 0
    refused: list[tuple[int, MagnetarError]] = field(default_factory=list)
    """The sequence ids of refused messages, with the reasons."""


class Producer:
    topic: Topic
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


REPLICATOR_PREFIX = "pulsar.repl"

Publish: TypeAlias = tuple[Producer, int, int, int, int, float]
"""Producer, sequence id, highest sequence id, messages, bytes, and the loop's time when it arrived."""

producer_of: Final[Callable[[Publish], Producer]] = itemgetter(0)

Offer: TypeAlias = tuple[int, int, int, int, int, int]
"""One entry of a run that a front end offers to a topic.

It has a number of the front end's own, which topics ignore; sequence id, highest sequence id, messages; and the offset
and length of its bytes. A scan of received bytes returns this form, so that nothing is made for each entry.
"""


WAITING_MAX = 1_000  # Producers that wait for exclusive access; each holds a request of a client open.

StoreEpoch = Callable[[int], Awaitable[None]]


class Producers:
    """Admits the producers of one topic. Used on the loop only; `admit` may wait for the epoch to be stored."""

    def __init__(self, topic: str, store_epoch: StoreEpoch, epoch: int | None = None) -> None:
        self._topic = topic
        self._store_epoch = store_epoch
        self.epoch = epoch
        self.max_count = 0
        """Zero: no limit."""
        self.max_same_address = 0
        self._by_name: dict[str, Producer] = {}
        self._exclusive: Producer | None = None
        """The producer that has the topic alone, or is being admitted for that."""
        self._epoch_taken = -1
        """The highest epoch that is being stored; it is not given again."""
        self._storing = asyncio.Lock()
        self._waiting: list[tuple[Producer, asyncio.Future[None]]] = []

    def __len__(self) -> int:
        return len(self._by_name)

    def __iter__(self) -> Iterator[Producer]:
        return iter(list(self._by_name.values()))

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @property
    def user_count(self) -> int:
        return sum(not producer.is_remote for producer in self._by_name.values())

    def require_room(self) -> None:
        """Refuses a producer that would exceed the limit, before anything is done for it."""
        if self.max_count and self.user_count >= self.max_count:
            raise ProducerBusyError(
                f"topic {self._topic} has {counted(self.max_count, 'producer')},"
                " which is its limit: close one, or raise the limit"
            )

    async def admit(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Returns the topic's epoch when the producer may publish. `on_queued` is called if it must wait for that."""
        if not producer.is_remote:
            self.require_room()
        try:
            await self._gain_access(producer, on_queued)
            await self._take_name(producer)
        except BaseException:
            self._give_up_access(producer)
            raise
        producer.topic_epoch = self.epoch
        return self.epoch

    def remove(self, producer: Producer) -> None:
        """Removes a producer, or does nothing if it is not admitted."""
        self._stop_waiting(producer)
        if self._by_name.get(producer.name) is not producer:
            return
        del self._by_name[producer.name]
        if self._exclusive is None and not self._by_name:
            self._pass_on_access()
        self._give_up_access(producer)

    # --- access -------------------------------------------------------------------------------------------------------

    async def _gain_access(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        mode = producer.options.access_mode
        if mode is AccessMode.SHARED:
            self._require_access(producer)
            return
        self._require_epoch(producer)
        if mode is AccessMode.EXCLUSIVE:
            self._require_alone()
        elif mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._throw_out_all()
        elif self._exclusive is not None or self._by_name:
            await self._wait_for_access(producer, on_queued)
            self._require_epoch(producer)
        self._exclusive = producer  # At once: no other may begin while the epoch is stored.
        await self._take_epoch(producer)

    def _require_access(self, producer: Producer) -> None:
        """Checks again after each wait: others come meanwhile, and one that fences has not seen this one."""
        if producer.options.access_mode is not AccessMode.SHARED:
            if self._exclusive is not producer:
                raise self._taken_by_another()
        elif self._is_taken:
            raise ProducerBusyError(f"topic {self._topic} has an exclusive producer: {self._exclusive_name}")

    def _require_alone(self) -> None:
        if self._is_taken:
            raise ProducerFencedError(f"topic {self._topic} has an exclusive producer: {self._exclusive_name}")
        if self._by_name:
            raise ProducerFencedError(f"topic {self._topic} has shared producers: close them first")

    @property
    def _is_taken(self) -> bool:
        return self._exclusive is not None or bool(self._waiting)

    @property
    def _exclusive_name(self) -> str | None:
        return None if self._exclusive is None else self._exclusive.name

    def _throw_out_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for _, admitted in waiting:
            if not admitted.done():
                admitted.set_exception(self._taken_by_another())
        thrown_out, self._by_name = list(self._by_name.values()), {}
        self._exclusive = None  # A producer that is being admitted sees it.
        for producer in thrown_out:
            producer.is_closed = True
            producer.sink.close_producer(producer)

    def _taken_by_another(self) -> ProducerFencedError:
        return ProducerFencedError(f"another producer took topic {self._topic} for itself")

    async def _wait_for_access(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise ProducerBusyError(f"{WAITING_MAX} producers wait for topic {self._topic} already")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((producer, admitted))
        on_queued()
        try:
            await admitted  # As long as it takes: the client waits, too, and its end cancels this.
        finally:
            self._stop_waiting(producer)
        self._require_access(producer)

    def _give_up_access(self, producer: Producer) -> None:
        """Passes the access on, unless another producer has it, or has taken it since."""
        if self._exclusive is producer:
            self._pass_on_access()

    def _pass_on_access(self) -> None:
        self._exclusive = None
        while self._waiting:
            producer, admitted = self._waiting.pop(0)
            if not admitted.done():
                self._exclusive = producer  # No other may take it until this one has it.
                admitted.set_result(None)
                return

    def _stop_waiting(self, producer: Producer) -> None:
        for waiting in list(self._waiting):
            if waiting[0] is producer:
                self._waiting.remove(waiting)
                if not waiting[1].done():
                    waiting[1].cancel()

    # --- epochs -------------------------------------------------------------------------------------------------------

    @property
    def _last_epoch(self) -> int:
        """The highest epoch that is stored, or about to be."""
        return max(self._epoch_taken, -1 if self.epoch is None else self.epoch)

    def _require_epoch(self, producer: Producer) -> None:
        """Checks the epoch before any producer is removed for it."""
        claimed = producer.options.topic_epoch
        if claimed is not None and claimed < self._last_epoch:
            raise ProducerFencedError(
                f"the epoch of topic {self._topic} is {self._last_epoch}, the producer's is {claimed}: another "
                "exclusive producer has been connected since"
            )

    async def _take_epoch(self, producer: Producer) -> None:
        """Takes the next epoch, or the one with which the producer comes back."""
        claimed = producer.options.topic_epoch
        epoch = self._epoch_taken = self._last_epoch + 1 if claimed is None else claimed
        try:
            async with self._storing:
                self._require_access(producer)  # If it was fenced while it waited, nothing is stored for it.
                if epoch != self.epoch:
                    await self._store_epoch(epoch)
                self.epoch = epoch
        except BaseException:
            if self._epoch_taken == epoch:
                self._epoch_taken = -1  # No producer was admitted with it: the next one may have it.
            raise
        self._require_access(producer)

    # --- names --------------------------------------------------------------------------------------------------------

    async def _take_name(self, producer: Producer) -> None:
        self._require_address_room(producer)
        old = self._by_name.get(producer.name)
        if old is None:
            self._by_name[producer.name] = producer
        elif producer.succeeds(old):
            old.is_closed = True
            self._by_name[producer.name] = producer
        elif await is_dead(old.sink, producer.sink):
            self.remove(old)  # Its connection has reported its end already, unless it was slow.
            self._require_access(producer)
            await self._take_name_of_the_dead(producer)
        else:
            raise self._name_is_taken(producer)

    async def _take_name_of_the_dead(self, producer: Producer) -> None:
        if producer.name in self._by_name:  # Another one was faster.
            raise self._name_is_taken(producer)
        self._by_name[producer.name] = producer

    def _name_is_taken(self, producer: Producer) -> MagnetarError:
        return ProducerBusyError(f"a producer named {producer.name!r} is connected to topic {self._topic} already")

    def _require_address_room(self, producer: Producer) -> None:
        if not self.max_same_address or producer.is_remote:
            return
        host = _host_of(producer.address)
        if sum(_host_of(other.address) == host for other in self._by_name.values()) >= self.max_same_address:
            raise ProducerBusyError(
                f"topic {self._topic} has {counted(self.max_same_address, 'producer')} from {host}, which is its limit "
                "for one address: close one, or raise the limit"
            )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
