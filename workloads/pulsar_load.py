"""Numbered messages through the official Python client, and what came back of them.

Load:      one named producer, batching on, sends 0, 1, 2, … and never gives a message up: after a lost connection the
           client sends again what was not acknowledged, and deduplication makes once of it.
Record:    the client's own callbacks, on its own threads; `acknowledged` grows in the order of the numbers.
Verdict:   `read_back` goes through the topic as a reader that knows nothing, and counts what is wrong.
Needs:     the package `pulsar-client`, which magnetar itself does not use.

A durable subscription that acknowledges with receipts, followed through the kills of its server.

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
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import pulsar

from magnetar.client import ClientOptions, Consumer, ConsumerOptions, Message, PulsarClient
from magnetar.errors import MagnetarError, ProcessFailedError
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.child import wait_for

PENDING_MAX: Final = 1_000
PATIENCE_MS: Final = 30_000
END_TIMEOUT_S: Final = 60.0
_PAUSE_S: Final = 0.005
_FILLER: Final = bytes(range(256))
_NOTES_MAX: Final = 10


def payload_of(number: int, size: int) -> bytes:
    """Different for each number, so that bytes of another message are noticed."""
    head = b"%d:" % number
    start = number % len(_FILLER)
    filler = _FILLER[start:] + _FILLER[:start]
    return (head + filler * (size // len(_FILLER) + 1))[: max(size, len(head))]


def number_of(payload: bytes) -> int:
    head, _, _ = payload.partition(b":")
    return int(head) if head.isdigit() else -1


def connect(url: str, log: Path) -> pulsar.Client:
    """With a file for what it has to say: a server that is killed is no news here."""
    logger = pulsar.FileLogger(pulsar.LoggerLevel.Warn, str(log))
    return pulsar.Client(url, logger=logger, operation_timeout_seconds=int(END_TIMEOUT_S))


class Receipt(NamedTuple):
    """What the broker answered to one message."""

    ledger_id: int
    entry_id: int
    batch_index: int

    @property
    def is_repeated(self) -> bool:
        """Whether the message was stored before: deduplication dropped it, and the receipt names no position."""
        return self.ledger_id < 0


class NumberedLoad:
    """Sends from the moment it is made, until `finish`."""

    def __init__(self, client: pulsar.Client, topic: str, *, rate: int, size: int, name: str = "numbered") -> None:
        self.sent = 0
        self.acknowledged = 0
        """Numbers 0 up to this one, without it."""
        self.receipts: dict[int, Receipt] = {}
        self.failures: list[str] = []
        self.last_ack_at = time.monotonic()
        self.longest_wait_s = 0.0
        """Between two acknowledgements."""
        self._rate, self._size = rate, size
        self._producer = client.create_producer(
            topic,
            producer_name=name,
            batching_enabled=True,
            batching_max_publish_delay_ms=5,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            send_timeout_millis=0,  # However long it takes.
        )
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    @property
    def unanswered(self) -> int:
        return self.sent - self.acknowledged

    def wait_acknowledged(self, more: int, timeout: float = END_TIMEOUT_S) -> None:
        wanted = self.acknowledged + more
        wait_for(self._is_at(wanted), what=f"the acknowledgement of {more:,} more messages", timeout=timeout)

    def wait_unanswered(self) -> None:
        wait_for(lambda: self.unanswered > 0, what="a message under way", timeout=END_TIMEOUT_S, every=0)

    def finish(self) -> None:
        """Nothing more is sent, and everything that was is acknowledged. TimeoutError."""
        self._ends.set()
        self._thread.join(END_TIMEOUT_S)
        wait_for(self._is_at(self.sent), what="the acknowledgement of everything sent", timeout=END_TIMEOUT_S)
        if self._thread.is_alive():
            raise ProcessFailedError("the official client did not take another message in time")

    def _is_at(self, number: int) -> Any:
        return lambda: self.failures or self.acknowledged >= number

    def _send_all(self) -> None:
        """A little at a time; what could not be sent while the server was away is not made up for."""
        burst = max(1, round(self._rate * _PAUSE_S))
        while not self._ends.wait(_PAUSE_S):
            for number in range(self.sent, self.sent + burst):
                self.sent = number + 1
                self._producer.send_async(payload_of(number, self._size), self._callback_for(number))

    def _callback_for(self, number: int) -> Any:
        def on_answer(result: Any, message_id: Any) -> None:
            if result != pulsar.Result.Ok or number != self.acknowledged:
                self.failures.append(f"message {number} was answered {result} when {self.acknowledged} was next")
                return
            now = time.monotonic()
            self.longest_wait_s = max(self.longest_wait_s, now - self.last_ack_at)
            self.last_ack_at = now
            self.receipts[number] = Receipt(message_id.ledger_id(), message_id.entry_id(), message_id.batch_index())
            self.acknowledged = number + 1

        return on_answer


@dataclass(slots=True)
class Tally:
    """What a reader from the beginning saw, held against what was acknowledged."""

    sent: int
    acknowledged: int
    received: int = 0
    lost: int = 0
    duplicated: int = 0
    out_of_order: int = 0
    damaged: int = 0
    notes: list[str] = field(default_factory=list)
    """The first of what is wrong, in words."""

    @property
    def passed(self) -> bool:
        wrong = self.lost + self.duplicated + self.out_of_order + self.damaged
        return self.acknowledged > 0 and self.received >= self.acknowledged and not wrong and not self.notes


def read_back(client: pulsar.Client, topic: str, load: NumberedLoad, size: int) -> Tally:
    tally = Tally(load.sent, load.acknowledged, notes=load.failures[:_NOTES_MAX])
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    seen: set[int] = set()
    highest = -1
    while reader.has_message_available():
        payload = reader.read_next(PATIENCE_MS).data()
        number = number_of(payload)
        tally.received += 1
        if payload != payload_of(number, size):
            tally.damaged += 1
            _note(tally, f"message {tally.received} has other bytes than were sent: {payload[:20]!r}…")
        elif number in seen:
            tally.duplicated += 1
            _note(tally, f"{number} came again after {highest}")
        elif number < highest:
            tally.out_of_order += 1
            _note(tally, f"{number} came after {highest}")
        seen.add(number)
        highest = max(highest, number)
    reader.close()
    missing = [number for number in range(load.acknowledged) if number not in seen]
    tally.lost = len(missing)
    if missing:
        _note(tally, f"lost, of those acknowledged: {', '.join(map(str, missing[:_NOTES_MAX]))} …")
    return tally


def _note(tally: Tally, text: str) -> None:
    if len(tally.notes) < _NOTES_MAX:
        tally.notes.append(text)


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
