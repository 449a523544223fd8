"""What one connection has: who the client is, its producers and consumers, and what of it is under way.

Requests:  one that must wait is a task of the session (`serve`), which answers or refuses it; all end with the
           connection. Requests that are answered at once have no task.
Holding:   by reason, each once: too much of it unpublished, too many receipts of acknowledgements outstanding, the
           broker's publish memory, a topic without room, a rate.
Sink:      receipts and refusals of published messages go out here (broker/producer.py).
Read next: dispatcher.py, send.py, consumer.py
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Coroutine, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any

from magnetar.broker.producer import Producer, Publish
from magnetar.broker.pulsar.connection import Connection
from magnetar.broker.pulsar.errors import code_of, message_of, publish_code_of
from magnetar.broker.pulsar.ids import NO_REQUEST
from magnetar.broker.service import BrokerService
from magnetar.config.pulsar import PulsarConfig
from magnetar.errors import MagnetarError
from magnetar.wire.pulsar.encode import (
    encode_command,
    encode_error,
    encode_send_error,
    encode_send_receipt,
    encode_send_receipts,
)
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, FeatureFlags

if TYPE_CHECKING:
    from magnetar.broker.pulsar.consumer import ConsumerHandle
    from magnetar.broker.pulsar.front_end import FrontEnd
    from magnetar.broker.pulsar.watch_topic_list import TopicListWatcher

log = logging.getLogger(__name__)

CLOSED_PRODUCERS_MAX = 1_000  # Whose last messages may still be on the way; the oldest are forgotten.


class Session:
    """Made with its connection, ended by `on_closed`."""

    def __init__(self, front_end: FrontEnd, connection: Connection) -> None:
        self.front_end = front_end
        self.service: BrokerService = front_end.service
        self.config: PulsarConfig = front_end.config
        self.connection = connection
        self.is_connected = False
        self.protocol_version = 0
        self.client_version = ""
        self.features = FeatureFlags()
        self.producers: dict[int, Producer] = {}
        self.consumers: dict[int, ConsumerHandle] = {}
        self.watchers: dict[int, TopicListWatcher] = {}
        self.creating: dict[tuple[str, int], asyncio.Task[None]] = {}
        """What is being made: ("producer" or "consumer", its id) → the task that does it."""
        self.closed_producers: OrderedDict[int, None] = OrderedDict()
        self.pending_publishes = 0
        self.pending_receipts = 0
        self.loop = asyncio.get_running_loop()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._brief: dict[asyncio.Task[None], None] = {}
        self._held: dict[str, None] = {}

    @property
    def peer(self) -> str:
        return self.connection.peer

    # --- the connection's side ----------------------------------------------------------------------------------------

    def on_received(self, buffer: Buffer, start: int, end: int) -> int:
        return self.front_end.dispatch(self, buffer, start, end)

    def on_writable(self) -> None:
        for handle in list(self.consumers.values()):
            handle.subscription.resume(handle.consumer)

    def on_closed(self) -> None:
        for task in list(self._tasks):
            task.cancel()
        for watcher in self.watchers.values():
            watcher.close()
        for producer in list(self.producers.values()):
            self.forget_producer(producer)
            producer.topic.remove_producer(producer)
        for handle in list(self.consumers.values()):
            handle.close()
        self.front_end.forget(self)

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

    def takes_long(self) -> None:
        """Says the work of a request that it has been answered for now and waits for what may never come: it is not
        one that others have to wait for."""
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

    def created(self, key: tuple[str, int], done: asyncio.Task[None]) -> None:
        """A producer or consumer is there, or will never be."""
        if self.creating.get(key) is done:
            del self.creating[key]

    def answer(self, frame: bytes) -> None:
        self.connection.send(frame)

    def answer_command(self, command: BaseCommand) -> None:
        self.connection.send(encode_command(command))

    def refuse(self, request_id: int, error: BaseException) -> None:
        self.connection.send(encode_error(request_id, code_of(error), message_of(error)))

    # --- holding ------------------------------------------------------------------------------------------------------

    def hold(self, reason: str) -> None:
        if reason not in self._held:
            self._held[reason] = None
            self.connection.hold()

    def let_go(self, reason: str) -> None:
        if reason in self._held:
            del self._held[reason]
            self.connection.release()

    # --- consumers ----------------------------------------------------------------------------------------------------

    def on_receipt_awaited(self) -> None:
        """An acknowledgement will be answered when the cursor's write is durable."""
        self.pending_receipts += 1
        if self.pending_receipts >= self.config.pending_receipts_per_connection_max:
            self.hold("receipts")

    def on_receipts_sent(self, count: int) -> None:
        self.pending_receipts -= count
        if self.pending_receipts <= self.config.pending_receipts_per_connection_max // 2:
            self.let_go("receipts")

    # --- producers ----------------------------------------------------------------------------------------------------

    def forget_producer(self, producer: Producer) -> None:
        """What it still sends is dropped: the client learns later that the producer is closed."""
        producer.is_closed = True
        if self.producers.get(producer.producer_id) is producer:
            del self.producers[producer.producer_id]
            self.closed_producers[producer.producer_id] = None
            if len(self.closed_producers) > CLOSED_PRODUCERS_MAX:
                self.closed_producers.popitem(last=False)

    def close_producer(self, producer: Producer) -> None:
        """The topic's wish: the client is told, and comes back if it wants to."""
        self.forget_producer(producer)
        command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
        command.close_producer.producer_id = producer.producer_id
        command.close_producer.request_id = NO_REQUEST
        self.answer_command(command)

    async def check_alive(self) -> bool:
        return await self.connection.check_alive(self.config.liveness_check_timeout_ms / 1000)

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        producer_id = producer.producer_id
        if ledger_id >= 0:
            receipts = [(producer_id, publish[1], publish[2]) for publish in run]
            self.connection.send(encode_send_receipts(ledger_id, first_entry_id, receipts))
        else:
            self.connection.send(*[encode_send_receipt(producer_id, each[1], each[2], -1, -1) for each in run])
        self._on_answered(len(run), size)

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        code, why = publish_code_of(error), message_of(error)
        self.connection.send(
            *[encode_send_error(producer.producer_id, max(each[1], each[2]), code, why) for each in run]
        )
        self._on_answered(len(run), sum(each[4] for each in run))

    def on_taken(self, entries: int, size: int) -> None:
        """A run is on its way to the disk."""
        self.pending_publishes += entries
        if self.pending_publishes >= self.config.pending_publishes_per_connection_max:
            self.hold("publishes")
        self.front_end.memory.take(size, self)

    def _on_answered(self, entries: int, size: int) -> None:
        self.pending_publishes -= entries
        if self.pending_publishes <= self.config.pending_publishes_per_connection_max // 2:
            self.let_go("publishes")
        self.front_end.memory.give_back(size)
