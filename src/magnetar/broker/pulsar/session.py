"""Session: what one connection has, the client's identity, its producers and consumers, and its requests in progress.

Receipts and refusals of published messages are sent here (broker/publishing/producers.py). A request that must wait is
a task of the session (`serve`), which answers or refuses it; all end with the connection. Requests that are answered at
once have no task.

Limits:    The connection is held by reason, each once: too much of it unpublished, too many receipts of
           acknowledgements outstanding, the broker's publish memory, a topic without room, a rate.
Read next: dispatcher.py, send.py, consumer.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, TypeAlias

from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import Successor
from magnetar.broker.publishing.producers import Producer, Publish
from magnetar.broker.publishing.publish_memory import PublishMemory
from magnetar.broker.pulsar.connection import Connection
from magnetar.broker.pulsar.errors import code_of, message_of, publish_code_of
from magnetar.broker.pulsar.values import NO_REQUEST
from magnetar.broker.service import BrokerService
from magnetar.config.pulsar import PulsarConfig
from magnetar.errors import MagnetarError, TooManyRequestsError
from magnetar.topic.entry_format.conversions import Conversions
from magnetar.wire.pulsar.encode import (
    encode_command,
    encode_error,
    encode_send_error,
    encode_send_receipt,
    encode_send_receipts,
)
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandCloseConsumer,
    CommandCloseProducer,
    FeatureFlags,
)

if TYPE_CHECKING:
    from magnetar.broker.pulsar.consumer import ConsumerHandle

log = logging.getLogger(__name__)

Dispatch: TypeAlias = "Callable[[Session, Buffer, int, int], int]"

CLOSED_PRODUCERS_MAX = 1_000  # Closed producers whose last messages may still come; the oldest are forgotten.


class LookupLimit:
    """Limits the lookups of all connections that are in progress."""

    def __init__(self, lookups_max: int) -> None:
        self.in_progress = 0
        self._lookups_max = lookups_max

    @contextmanager
    def turn(self) -> Iterator[None]:
        """Counts one lookup. Raises TooManyRequestsError at the limit."""
        if self.in_progress >= self._lookups_max:
            raise TooManyRequestsError(f"{self.in_progress} lookups are in progress, which is the limit: try again")
        self.in_progress += 1
        try:
            yield
        finally:
            self.in_progress -= 1


@dataclass(frozen=True, slots=True)
class Shared:
    """What all sessions of a front end share."""

    service: BrokerService
    config: PulsarConfig
    memory: PublishMemory
    lookups: LookupLimit
    conversions: Conversions


class Session:
    """Is made with its connection, ended by `on_closed`, which calls `on_ended`; `release` is called after that."""

    def __init__(
        self, shared: Shared, connection: Connection, dispatch: Dispatch, on_ended: Callable[[Session], None]
    ) -> None:
        """`dispatch` handles whole frames, as `Handler.on_received` does."""
        self.service = shared.service
        self.config = shared.config
        self.lookups = shared.lookups
        self.conversions = shared.conversions
        self.connection = connection
        self._memory = shared.memory
        self._dispatch = dispatch
        self._on_ended = on_ended
        self.is_connected = False
        self.protocol_version = 0
        self.client_version = ""
        self.features = FeatureFlags()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, ConsumerHandle] = {}
        self.watchers: dict[int, asyncio.Task[None]] = {}
        """Watcher's id → the task that follows the list."""
        self.creating_producers: dict[int, asyncio.Task[None]] = {}
        """Producers that are being made and are not among `producers` yet: id → the task that makes it."""
        self.creating_consumers: dict[int, asyncio.Task[None]] = {}
        self.closed_producers: OrderedDict[int, None] = OrderedDict()
        self.pending_publishes = 0
        self.pending_receipts = 0
        self.loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._brief: dict[asyncio.Task[None], None] = {}

    @property
    def peer(self) -> str:
        return self.connection.peer

    # --- the connection's side ----------------------------------------------------------------------------------------

    def on_received(self, buffer: Buffer, start: int, end: int) -> int:
        return self._dispatch(self, buffer, start, end)

    def on_writable(self) -> None:
        for handle in list(self.consumers.values()):
            handle.subscription.resume(handle.consumer)

    def on_closed(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for watcher in self.watchers.values():
            watcher.cancel()
        self._on_ended(self)

    @property
    def clients(self) -> int:
        """The producers and consumers."""
        return len(self.producers) + len(self.consumers)

    def release(self) -> None:
        """Removes the connection's producers and consumers from their topics."""
        for _ in self._release():
            pass

    async def release_in_slices(self) -> None:
        """Does the same, with turns for others. What is still on its topic counts as not having noticed the end yet."""
        for _ in self._release():
            await self.service.slices.turn()

    def _release(self) -> Iterator[None]:
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
            producer.topic.remove_producer(producer)
            yield
        for handle in list(self.consumers.values()):
            handle.consumer.is_lost = True
            handle.close()
            yield

    # --- requests -----------------------------------------------------------------------------------------------------

    def serve(self, work: Coroutine[Any, Any, None], request_id: int) -> asyncio.Task[None]:
        """Runs the work of one request; an error of it is the answer."""
        task = self.loop.create_task(work, name="pulsar-request")
        self._tasks[task] = None
        self._brief[task] = None
        task.add_done_callback(partial(self._on_done, request_id))
        if len(self._brief) >= self.config.requests_per_connection_max:
            self.hold("requests")
        return task

    def create(
        self, creating: dict[int, asyncio.Task[None]], number: int, work: Coroutine[Any, Any, None], request_id: int
    ) -> None:
        """Makes a producer or a consumer, which stands in `creating` until the work removes it, or has failed."""
        task = creating[number] = self.serve(work, request_id)

        def on_done(done: asyncio.Task[None]) -> None:
            if creating.get(number) is done:
                del creating[number]

        task.add_done_callback(on_done)

    def takes_long(self) -> None:
        """Is called by a request's work that is answered for now and waits for what may never come.

        Other requests do not have to wait for it.
        """
        task = asyncio.current_task()
        if task is not None:
            self._ended_brief(task)

    def _ended_brief(self, task: asyncio.Task[None]) -> None:
        self._brief.pop(task, None)
        if len(self._brief) <= self.config.requests_per_connection_max // 2:
            self.let_go("requests")

    def _on_done(self, request_id: int, task: asyncio.Task[None]) -> None:
        del self._tasks[task]
        self._ended_brief(task)
        error = None if task.cancelled() else task.exception()
        if isinstance(error, MagnetarError | TimeoutError):
            self.refuse(request_id, error)
        elif error is not None:
            log.error("a request failed", extra={"peer": self.peer}, exc_info=error)
            self.connection.abort()

    def answer(self, frame: bytes) -> None:
        self.connection.send((frame,))

    def answer_command(self, command: BaseCommand) -> None:
        self.connection.send((encode_command(command),))

    def refuse(self, request_id: int, error: BaseException) -> None:
        self.connection.send((encode_error(request_id, code_of(error), message_of(error)),))

    # --- holding ------------------------------------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        self.connection.hold(reason)

    def let_go(self, reason: str) -> None:
        self.connection.release(reason)

    # --- consumers ----------------------------------------------------------------------------------------------------

    def on_receipt_awaited(self) -> None:
        """Counts an acknowledgement that will be answered when the cursor's write is durable."""
        self.pending_receipts += 1
        if self.pending_receipts >= self.config.pending_receipts_per_connection_max:
            self.hold("receipts")

    def on_receipts_sent(self, count: int) -> None:
        self.pending_receipts -= count
        if self.pending_receipts <= self.config.pending_receipts_per_connection_max // 2:
            self.let_go("receipts")

    # --- producers ----------------------------------------------------------------------------------------------------

    def forget_producer(self, producer: Producer) -> None:
        """Drops what it still sends: the client learns later that the producer is closed."""
        producer.is_closed = True
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self.closed_producers[producer.producer_id] = None
            if len(self.closed_producers) > CLOSED_PRODUCERS_MAX:
                self.closed_producers.popitem(last=False)

    def close_producer(self, producer: Producer) -> None:
        """Closes the producer for its topic: the client is informed, and comes back if it wants to."""
        self.forget_producer(producer)
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer.producer_id
        command.close_producer.request_id = NO_REQUEST
        self.answer_when_known(command, command.close_producer, producer.topic.successor)

    def answer_when_known(
        self, command: BaseCommand, close: CommandCloseProducer | CommandCloseConsumer, successor: Successor | None
    ) -> None:
        """Closes a client, with the address of the broker that serves its topic next, if there is one. A broker with
        advertised listeners is not named: it is not known here which of them the client can reach."""
        if successor is None:
            self.answer_command(command)
            return

        def on_known(known: Successor) -> None:
            address = None if known.cancelled() else known.result()
            if address is not None and PULSAR in address.urls and not address.listeners.get(PULSAR):
                close.assignedBrokerServiceUrl = address.urls[PULSAR]
            self.answer_command(command)

        successor.add_done_callback(on_known)

    async def check_alive(self) -> bool:
        return await self.connection.check_alive(self.config.liveness_check_timeout_ms / 1000)

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        producer_id = producer.producer_id
        if ledger_id >= 0:
            receipts = [(producer_id, sequence_id, highest) for _, sequence_id, highest, _, _, _ in run]
            self.connection.send((encode_send_receipts(ledger_id, first_entry_id, receipts),))
        else:
            self.connection.send(
                [
                    encode_send_receipt(producer_id, sequence_id, highest, -1, -1)
                    for _, sequence_id, highest, _, _, _ in run
                ]
            )
        self._on_answered(len(run), size)

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        code, why = publish_code_of(error), message_of(error)
        self.connection.send(
            [
                encode_send_error(producer.producer_id, max(sequence_id, highest), code, why)
                for _, sequence_id, highest, _, _, _ in run
            ]
        )
        self._on_answered(len(run), sum(size for _, _, _, _, size, _ in run))

    def on_taken(self, entries: int, size: int) -> None:
        """Counts a run that is being written."""
        self.pending_publishes += entries
        if self.pending_publishes >= self.config.pending_publishes_per_connection_max:
            self.hold("publishes")
        self._memory.take(size, self)

    def _on_answered(self, entries: int, size: int) -> None:
        self.pending_publishes -= entries
        if self.pending_publishes <= self.config.pending_publishes_per_connection_max // 2:
            self.let_go("publishes")
        self._memory.give_back(size)
