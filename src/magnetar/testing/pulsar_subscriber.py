"""A durable subscription that acknowledges with receipts, followed through the kills of its server.

Receipt:   the broker's word that an acknowledgement is on disk; the client here is our own, since the official Python
           client cannot ask for one.
Judged:    `again_in_vain` counts messages that came from a server started after one that had given their receipt.
           Others may come again: their acknowledgement was on its way when the server died.
Thread:    one, with an event loop; the fields are read by the thread that owns the subscriber.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
from typing import Final

from magnetar.client import ClientOptions, Consumer, ConsumerOptions, Message, PulsarClient
from magnetar.errors import MagnetarError
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes import wait_for
from magnetar.testing.pulsar_load import number_of

IN_FLIGHT_MAX: Final = 64
TIMEOUT_S: Final = 60.0
_POLL_S: Final = 0.1
_OPTIONS: Final = ClientOptions(backoff_longest_s=0.5)


class ReceiptSubscriber:
    """Subscribes from the beginning when it is made; runs until `finish`."""

    def __init__(self, url: str, topic: str, subscription: str) -> None:
        self.received: set[int] = set()
        self.receipts: set[int] = set()
        self.again = 0
        self.again_in_vain: list[int] = []
        self.failure: BaseException | None = None
        self._receipts_of_the_dead: set[int] = set()
        self._subscribed = threading.Event()
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._main, args=(url, topic, subscription), daemon=True)
        self._thread.start()
        if not self._subscribed.wait(TIMEOUT_S):
            raise TimeoutError(f"subscribing to {topic} took more than {TIMEOUT_S:g} s")

    def on_killed(self) -> None:
        """The server that gave the receipts so far is dead: none of those messages may come again."""
        self._receipts_of_the_dead |= set(self.receipts)

    def finish(self, count: int) -> None:
        """When messages 0 to `count` - 1 were received and every acknowledgement has had its answer. TimeoutError."""
        wait_for(
            lambda: self.failure is not None or len(self.received) >= count,
            what=f"the last of {count:,} messages ({len(self.received):,} were there)",
            timeout=TIMEOUT_S * 2,
        )
        self.end()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(TIMEOUT_S)
        if self.failure is not None:
            raise self.failure

    def _main(self, url: str, topic: str, subscription: str) -> None:
        try:
            asyncio.run(self._run(url, topic, subscription))
        except BaseException as error:  # Told by whoever waits.
            self.failure = error
            self._subscribed.set()

    async def _run(self, url: str, topic: str, subscription: str) -> None:
        options = ConsumerOptions(from_earliest=True)
        async with PulsarClient(url, SystemRuntime().entropy, _OPTIONS) as client:
            consumer = await client.consumer(topic, subscription, options)
            self._subscribed.set()
            room = asyncio.Semaphore(IN_FLIGHT_MAX)
            async with asyncio.TaskGroup() as tasks:
                while not self._ends.is_set():
                    with contextlib.suppress(TimeoutError):
                        message = await consumer.receive(_POLL_S)
                        self._on_received(number_of(message.payload))
                        await room.acquire()
                        tasks.create_task(self._acknowledge(consumer, message, room))

    def _on_received(self, number: int) -> None:
        self.again += number in self.received
        if number in self._receipts_of_the_dead:
            self.again_in_vain.append(number)
        self.received.add(number)

    async def _acknowledge(self, consumer: Consumer, message: Message, room: asyncio.Semaphore) -> None:
        try:
            await consumer.acknowledge(message)
            self.receipts.add(number_of(message.payload))
        except MagnetarError as error:
            if not error.retryable:
                raise
            # The server died before the receipt: if the acknowledgement died with it, the message comes again.
        finally:
            room.release()
