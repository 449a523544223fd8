"""What answers to reads keep in memory: entries stand in chunks of a cache, and a small one must not keep its chunk."""

from __future__ import annotations

import asyncio
import weakref
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import cast

import pytest

from magnetar.bookie.connection import Connection
from magnetar.bookie.ledgers import LedgerTable
from magnetar.bookie.reads import ReadLimits, Reads
from magnetar.storage.frames import KEPT_PER_BYTE
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.bookkeeper.hot_path import ReadRun, read_response_header

CHUNK_BYTES = 2**16
HEADER_BYTES = len(read_response_header(1, 0, 0))
BUSY_CHUNKS = 2  # One that is being read, and one that the caller still looks at.


class Chunk(bytearray):
    """Can be watched: `weakref` does not take plain bytes."""


class Source:
    """Each entry is a part of a chunk of its own, and the source keeps no chunk: its caches are too small."""

    def __init__(self, entry_bytes: int, *, is_cached: bool) -> None:
        self.entry_bytes = entry_bytes
        self.is_cached = is_cached
        self.live: weakref.WeakValueDictionary[int, Chunk] = weakref.WeakValueDictionary()
        self.peak = 0

    def entry(self, entry_id: int) -> memoryview:
        chunk = Chunk(CHUNK_BYTES)
        chunk[: self.entry_bytes] = bytes([entry_id % 256]) * self.entry_bytes
        self.live[id(chunk)] = chunk
        self.peak = max(self.peak, len(self.live))
        return memoryview(chunk)[: self.entry_bytes]

    def get_entry_nowait(self, ledger_id: int, entry_id: int) -> memoryview | None:
        return self.entry(entry_id) if self.is_cached else None

    def get_entries_nowait(self, ledger_id: int, entry_ids: Sequence[int]) -> list[memoryview | None]:
        return [self.get_entry_nowait(ledger_id, entry_id) for entry_id in entry_ids]

    async def get_entry(self, ledger_id: int, entry_id: int) -> memoryview:
        await asyncio.sleep(0)
        return self.entry(entry_id)

    async def last_entry(self, ledger_id: int) -> int | None:
        return None


class Client:
    """A connection whose client does not read: everything that is sent stays."""

    takes_answers = True

    def __init__(self) -> None:
        self.sent: list[Buffer] = []
        self.answers = 0

    def send(self, parts: Sequence[Buffer], answers: int = 1) -> None:
        self.sent += parts
        self.answers += answers

    @asynccontextmanager
    async def turn_to_answer(self) -> AsyncIterator[None]:
        yield


async def answers_to(source: Source, count: int) -> Client:
    reads = Reads(cast("LedgerTable", None), source, ReadLimits(10_000, 10_000))
    client = Client()
    reads.on_run(cast("Connection", client), ReadRun(0, [1] * count, list(range(count))))
    await reads.wait_idle()
    await reads.aclose()
    return client


@pytest.mark.parametrize("is_cached", [True, False])
@pytest.mark.parametrize("entry_bytes", [20, 1_000, 5_000, CHUNK_BYTES // KEPT_PER_BYTE, CHUNK_BYTES])
async def test_answers_keep_little_more_than_their_own_bytes_in_memory(entry_bytes: int, is_cached: bool) -> None:
    source = Source(entry_bytes, is_cached=is_cached)
    client = await answers_to(source, 250)
    assert client.answers == 250
    assert b"".join(client.sent) == b"".join(
        read_response_header(1, entry, entry_bytes) + bytes([entry]) * entry_bytes for entry in range(250)
    )
    assert len(source.live) * CHUNK_BYTES <= KEPT_PER_BYTE * 250 * entry_bytes
    if not is_cached:
        assert (source.peak - BUSY_CHUNKS) * CHUNK_BYTES <= KEPT_PER_BYTE * 250 * entry_bytes


async def test_small_answers_between_large_ones_keep_no_chunk() -> None:
    class Mixed(Source):
        def entry(self, entry_id: int) -> memoryview:
            whole = super().entry(entry_id)
            return whole if entry_id % 5 == 0 else whole[:20]

    source = Mixed(CHUNK_BYTES, is_cached=True)
    client = await answers_to(source, 250)
    assert len(client.sent) == 2 * 250
    assert len(source.live) <= 250 // 5


async def test_entries_that_are_most_of_their_chunk_together_are_not_copied() -> None:
    class OneChunk(Source):
        chunk = memoryview(Chunk(CHUNK_BYTES))

        def entry(self, entry_id: int) -> memoryview:
            return self.chunk[entry_id * 4_096 : (entry_id + 1) * 4_096]

    client = await answers_to(OneChunk(4_096, is_cached=True), CHUNK_BYTES // 4_096)
    assert all(type(part) is memoryview for part in client.sent[1::2])
