"""StagedCopy: entries that were staged go into a topic's log, in their order, as fast as the log takes them.

Flow:      the log's own: while it has no room, or the topic's rate is used up, nothing more is appended.
Settled:   it ends, well or badly, only when everything it appended is either durable or will never be. So whoever goes
           on later can count what is there.
Producer:  the owner's name, as it is in the entries. It is not connected; duplicates are not looked for, as what is
           missing is known exactly.
Read next: staged_publishing.py, persistent_publishing.py
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Final, NamedTuple

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.producer import Producer, ProducerOptions, Publish
from magnetar.errors import LogBusyError, MagnetarError, TopicFencedError
from magnetar.staging.reading import Chunk
from magnetar.topic.log import TopicLog
from magnetar.topic.position import Position
from magnetar.wire.pulsar.entry import body_offset_of, messages_in, metadata_of
from magnetar.wire.pulsar.frames import Buffer

_SETTLE_S_MAX: Final = 300.0  # A ledger's writer has failed long before.
_ROOM_S_MAX: Final = 300.0
_READ_ENTRIES: Final = 1_000
_READ_BYTES: Final = 4 * 2**20
_NEVER_MS: Final = 2**63 - 1


class Copied(NamedTuple):
    """What is in the log already, of all that is to be copied."""

    entries: int
    """From the first on."""
    oldest_ms: int
    """The earliest publish time of these entries."""


NOTHING_COPIED: Final = Copied(0, _NEVER_MS)


class StagedCopy:
    """One run of copying. A `ProducerSink`."""

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
        """Returns when all of it is durable. An error: perhaps some of it is."""
        try:
            async for chunk in chunks:
                await self._append(chunk)
                self._on_chunk()
        except asyncio.CancelledError:  # The broker stops: nobody goes on with this log.
            raise
        except BaseException:
            await self._settle()
            raise
        await self._settle()
        self._check()

    async def _append(self, chunk: Chunk) -> None:
        topic, producer, now = self._topic, self._producer, self._loop.time()
        for body in chunk:
            if self._holds or not topic.has_room:
                await self._wait_for_room()
            self._check()
            metadata = metadata_of(body)
            messages = messages_in(metadata)
            self.oldest_ms = min(self.oldest_ms, metadata.publish_time)
            publish = (producer, metadata.sequence_id, metadata.highest_sequence_id, messages, len(body), now)
            topic.publish_staged(publish, body)

    def _check(self) -> None:
        if self._failure is not None:
            raise self._failure

    # --- waiting ------------------------------------------------------------------------------------------------------

    async def _wait_for_room(self) -> None:
        end_s = self._loop.time() + _ROOM_S_MAX
        while self._failure is None:
            if not self._topic.has_room:
                self._topic.wait_for_room(self)
            if not self._holds:
                return
            if not await self._sleep(end_s):
                raise LogBusyError(f"topic {self._topic.name} had no room for {_ROOM_S_MAX:.0f} s: try again later")

    async def _settle(self) -> None:
        end_s = self._loop.time() + _SETTLE_S_MAX
        while self._producer.pending:
            if not await self._sleep(end_s):
                # Nobody could count what is there while more may come: the next load of the topic knows.
                error = TopicFencedError(f"appends to {self._topic.name} were not answered in {_SETTLE_S_MAX:.0f} s")
                self._topic.on_fenced(error)
                raise error

    async def _sleep(self, end_s: float) -> bool:
        """Until something changes; False when it is too late."""
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

    # --- what the topic says ------------------------------------------------------------------------------------------

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
        """It is not among the topic's producers."""

    async def check_alive(self) -> bool:
        return True


async def find_copied(log: TopicLog, start: Position, chunks: AsyncIterator[Chunk]) -> Copied:
    """Which of these entries, from the first on, are in the log behind `start`; in their order, with others between
    them. Nobody appends any of them meanwhile."""
    expected, oldest_ms = _Expected(chunks), _NEVER_MS
    wanted = await expected.next()
    position, end = log.chain.next_position(start), log.last_confirmed
    while wanted is not None and position <= end:
        found = await log.read(position, _READ_ENTRIES, _READ_BYTES)
        if not found:
            break
        for entry in found:
            if wanted is not None and _is_same(entry.data, wanted):
                oldest_ms = min(oldest_ms, metadata_of(wanted).publish_time)
                wanted = await expected.next()
                expected.met += 1
        position = log.chain.next_position(found[-1].position)
    return Copied(expected.met, oldest_ms)


class _Expected:
    """The staged entries, one by one."""

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
    """All but the header that the broker puts before it."""
    offset = body_offset_of(stored)
    return len(stored) - offset == len(staged) and memoryview(stored)[offset:] == staged
