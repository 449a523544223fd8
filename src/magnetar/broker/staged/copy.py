"""StagedCopy: copies staged entries into a topic's log, in their order, as fast as the log takes them.

The producer is the owner's name, as it is in the entries. It is not connected; duplicates are not looked for, as what
is missing is known exactly.

Invariant: A copy ends, with or without an error, only when everything it appended is either durable or will never be.
           So the next copy can count what is stored.
Limits:    While the log has no room, or the topic's rate is used up, nothing more is appended.
Read next: publishing.py, broker/publishing/topic_publisher.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import LogBusyError, MagnetarError, TopicFencedError
from magnetar.staging.reading import Chunk
from magnetar.topic.entry_format.head import body_of, read_body
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer

_SETTLE_S_MAX: Final = 300.0  # A ledger's writer fails long before.
_ROOM_S_MAX: Final = 300.0
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 4 * 2**20
_NEVER_MS: Final = 2**63 - 1


class Copied(NamedTuple):
    """What of a staged part is in the log already."""

    entries: int
    """From the first on."""
    oldest_ms: int
    """The earliest publish time of these entries."""


NOTHING_COPIED: Final = Copied(0, _NEVER_MS)


class StagedCopy:
    """Is one run of copying, and a `ProducerSink`."""

    def __init__(self, topic: PersistentTopic, owner: str, on_chunk: Callable[[], None]) -> None:
        """`on_chunk` is called whenever some more was appended."""
        self._topic = topic
        self._on_chunk = on_chunk
        self._loop = asyncio.get_running_loop()
        self._producer = Producer(ProducerOptions(producer_id=0, name=owner), self)
        self._failure: MagnetarError | None = None
        self._holds: dict[str, None] = {}
        self._woken: asyncio.Future[None] | None = None
        self.oldest_ms = _NEVER_MS
        """The earliest publish time of what was appended."""

    async def run(self, chunks: AsyncIterator[Chunk]) -> None:
        """Returns when all of it is durable. If it raises, some of it may be."""
        try:
            async for chunk in chunks:
                await self._append(chunk)
                self._on_chunk()
        except asyncio.CancelledError:  # The broker stops: this log is not used any more.
            raise
        except BaseException:
            await self._settle()
            raise
        await self._settle()
        self._check()

    async def _append(self, chunk: Chunk) -> None:
        publisher, producer, now = self._topic.publisher, self._producer, self._loop.time()
        for body in chunk:
            if self._holds or not publisher.has_room:
                await self._wait_for_room()
            self._check()
            head = read_body(body)
            self.oldest_ms = min(self.oldest_ms, head.publish_ms)
            publish = (producer, head.sequence_id, head.highest_sequence_id, head.messages, len(body), now)
            publisher.publish_staged(publish, body)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    async def _wait_for_room(self) -> None:
        end_s = self._loop.time() + _ROOM_S_MAX
        while self._failure is None:
            if not self._topic.publisher.has_room:
                self._topic.publisher.wait_for_room(self)
            if not self._holds:
                return
            if not await self._sleep(end_s):
                raise LogBusyError(f"topic {self._topic.name} had no room for {_ROOM_S_MAX:.0f} s: try again later")

    async def _settle(self) -> None:
        end_s = self._loop.time() + _SETTLE_S_MAX
        while self._producer.pending:
            if not await self._sleep(end_s):
                # While more may come, the stored entries cannot be counted: the next load of the topic can.
                error = TopicFencedError(f"appends to {self._topic.name} were not answered in {_SETTLE_S_MAX:.0f} s")
                self._topic.on_fenced(error)
                raise error

    async def _sleep(self, end_s: float) -> bool:
        """Waits until something changes; returns False when it is too late."""
        self._woken = self._loop.create_future()
        try:
            async with asyncio.timeout_at(end_s):
                await self._woken
        except TimeoutError:
            return False
        finally:
            self._woken = None
        return True

    def _wake(self) -> None:
        if self._woken is not None and not self._woken.done():
            self._woken.set_result(None)

    def published(
        self, producer: Producer, ledger_id: int, first_entry_id: int, run: Sequence[Publish], size: int
    ) -> None:
        del ledger_id, first_entry_id, run, size
        if not producer.pending:
            self._wake()

    def publish_failed(self, producer: Producer, run: Sequence[Publish], error: MagnetarError) -> None:
        del producer, run
        self._failure = self._failure or error
        self._wake()

    def hold(self, reason: str) -> None:
        self._holds[reason] = None

    def let_go(self, reason: str) -> None:
        self._holds.pop(reason, None)
        self._wake()

    def close_producer(self, producer: Producer) -> None:
        """Does nothing: it is not among the topic's producers."""

    async def check_alive(self) -> bool:
        return True


async def find_copied(log: TopicLog, start: Position, chunks: AsyncIterator[Chunk]) -> Copied:
    """Finds which of these entries, from the first on, are in the log after `start`, in order, among others.

    None of them may be appended meanwhile.
    """
    expected, oldest_ms = _Expected(chunks), _NEVER_MS
    wanted = await expected.next()
    position, end = log.chain.next_position(start), log.last_confirmed
    while wanted is not None and position <= end:
        found = await log.read(position, _READ_ENTRIES, _READ_BYTES)
        if not found:
            break
        for entry in found:
            if wanted is not None and _is_same(entry.data, wanted):
                oldest_ms = min(oldest_ms, read_body(wanted).publish_ms)
                wanted = await expected.next()
                expected.met += 1
        position = log.chain.next_position(found[-1].position)
    return Copied(expected.met, oldest_ms)


class _Expected:
    def __init__(self, chunks: AsyncIterator[Chunk]) -> None:
        self.met = 0
        self._chunks = chunks
        self._chunk: Chunk = ()
        self._at = 0

    async def next(self) -> Buffer | None:
        while self._at == len(self._chunk):
            chunk = await anext(self._chunks, None)
            if chunk is None:
                return None
            self._chunk, self._at = chunk, 0
        self._at += 1
        return self._chunk[self._at - 1]


def _is_same(stored: Buffer, staged: Buffer) -> bool:
    """Compares everything after the broker's header."""
    body = body_of(stored)
    return len(body) == len(staged) and body == staged
