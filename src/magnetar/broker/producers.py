"""Who may publish to a topic: names that are taken, exclusive access, epochs, and those that wait for it.

Shared:    any number, each name once. A producer of the same connection, id and name with a higher epoch replaces
           itself; a name held by another connection is given away only if that connection is dead.
Exclusive: alone, or refused for good. `WAIT_FOR_EXCLUSIVE` queues; `EXCLUSIVE_WITH_FENCING` throws the others out.
Epoch:     every new exclusive producer gets the next topic epoch, durable before it is admitted. One that reconnects
           with an epoch that is behind is fenced: somebody else has published in between.
Limits:    the topic's maximum of producers (of users, not of replicators or brokers), and per client address.
Read next: topic.py
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Iterator

from magnetar.broker.producer import AccessMode, Producer
from magnetar.errors import MagnetarError, ProducerBusyError, ProducerFencedError

WAITING_MAX = 1_000  # Producers that wait for exclusive access; each holds a request of a client open.

StoreEpoch = Callable[[int], Awaitable[None]]


class Producers:
    """Of one topic. Touched on the loop only; `admit` may wait for the epoch to be stored."""

    def __init__(self, topic: str, store_epoch: StoreEpoch, epoch: int | None = None) -> None:
        self._topic = topic
        self._store_epoch = store_epoch
        self.epoch = epoch
        self.max_count = 0
        """Zero: no limit."""
        self.max_same_address = 0
        self._by_name: dict[str, Producer] = {}
        self._exclusive: str | None = None
        self._waiting: deque[tuple[Producer, asyncio.Future[None]]] = deque()

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
        """Before anything is done for a producer that would be one too many."""
        if self.max_count and self.user_count >= self.max_count:
            raise ProducerBusyError(f"topic {self._topic} has {self.max_count} producers, as many as it may")

    async def admit(self, producer: Producer, on_queued: Callable[[], None]) -> int | None:
        """Returns the topic's epoch when the producer may publish. `on_queued` is called if it must wait for that."""
        if not producer.is_remote:
            self.require_room()
        await self._gain_access(producer, on_queued)
        try:
            await self._take_name(producer)
        except BaseException:
            if self._exclusive == producer.name:
                self._give_up_access()
            raise
        producer.topic_epoch = self.epoch
        return self.epoch

    def remove(self, producer: Producer) -> None:
        """Again, or of one that was never admitted, is harmless."""
        self._stop_waiting(producer)
        if self._by_name.get(producer.name) is not producer:
            return
        del self._by_name[producer.name]
        if self._exclusive is not None or not self._by_name:
            self._give_up_access()

    # --- access -------------------------------------------------------------------------------------------------------

    async def _gain_access(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        mode = producer.options.access_mode
        taken = self._exclusive is not None or bool(self._waiting)
        if mode is AccessMode.SHARED:
            if taken:
                raise ProducerBusyError(f"topic {self._topic} has an exclusive producer: {self._exclusive}")
            return
        if mode is AccessMode.EXCLUSIVE:
            self._require_alone(taken)
        elif mode is AccessMode.EXCLUSIVE_WITH_FENCING:
            self._throw_out_all()
        elif self._exclusive is not None or self._by_name:
            await self._wait_for_access(producer, on_queued)
            return
        await self._take_access(producer)

    def _require_alone(self, taken: bool) -> None:
        if taken:
            raise ProducerFencedError(f"topic {self._topic} has an exclusive producer: {self._exclusive}")
        if self._by_name:
            raise ProducerFencedError(f"topic {self._topic} has producers that share it")

    def _throw_out_all(self) -> None:
        waiting, self._waiting = self._waiting, deque()
        for _, admitted in waiting:
            if not admitted.done():
                admitted.set_exception(ProducerFencedError(f"another producer took topic {self._topic} for itself"))
        thrown_out, self._by_name = list(self._by_name.values()), {}
        self._exclusive = None
        for producer in thrown_out:
            producer.is_closed = True
            producer.sink.close_producer(producer)

    async def _take_access(self, producer: Producer) -> None:
        claimed = producer.options.topic_epoch
        if claimed is not None and claimed < (-1 if self.epoch is None else self.epoch):
            raise ProducerFencedError(
                f"the epoch of topic {self._topic} is {self.epoch}, the producer's is {claimed}: another exclusive "
                "producer was there in between"
            )
        self._exclusive = producer.name  # At once: nobody else may begin while the epoch is stored.
        epoch = claimed if claimed is not None else (0 if self.epoch is None else self.epoch + 1)
        try:
            if epoch != self.epoch:
                await self._store_epoch(epoch)
        except BaseException:
            self._give_up_access()
            raise
        self.epoch = epoch

    async def _wait_for_access(self, producer: Producer, on_queued: Callable[[], None]) -> None:
        if len(self._waiting) >= WAITING_MAX:
            raise ProducerBusyError(f"{WAITING_MAX} producers wait for topic {self._topic} already")
        admitted: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._waiting.append((producer, admitted))
        on_queued()
        try:
            await admitted  # As long as it takes: the client waits, too, and its end cancels this.
        except BaseException:
            if admitted.done() and not admitted.cancelled() and admitted.exception() is None:
                self._give_up_access()  # It was this one's turn, and its client has gone.
            raise
        finally:
            self._stop_waiting(producer)
        await self._take_access(producer)

    def _give_up_access(self) -> None:
        """The next one that waits gets it."""
        self._exclusive = None
        while self._waiting:
            producer, admitted = self._waiting.popleft()
            if not admitted.done():
                self._exclusive = producer.name  # Until it has really got it, nobody else may.
                admitted.set_result(None)
                return

    def _stop_waiting(self, producer: Producer) -> None:
        for waiting in list(self._waiting):
            if waiting[0] is producer:
                self._waiting.remove(waiting)
                if not waiting[1].done():
                    waiting[1].cancel()

    # --- names --------------------------------------------------------------------------------------------------------

    async def _take_name(self, producer: Producer) -> None:
        self._require_address_room(producer)
        old = self._by_name.get(producer.name)
        if old is None:
            self._by_name[producer.name] = producer
        elif producer.succeeds(old):
            old.is_closed = True
            self._by_name[producer.name] = producer
        elif old.sink is not producer.sink and not await old.sink.check_alive():
            self.remove(old)  # Its connection has said so already, unless it was slow.
            await self._take_name_of_the_dead(producer)
        else:
            raise self._name_is_taken(producer)

    async def _take_name_of_the_dead(self, producer: Producer) -> None:
        if producer.name in self._by_name:  # Another one was quicker.
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
                f"topic {self._topic} has {self.max_same_address} producers from {host}, as many as it may"
            )


def _host_of(address: str) -> str:
    return address.rpartition(":")[0]
