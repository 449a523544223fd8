"""Our client as the checks use it: entries whose bytes follow from their ids, a window of adds in flight."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from dataclasses import replace
from typing import Any

from interop.bookie.client import ENTRY_BYTES, PASSWORD, Quorum
from interop.ledger.bodies import body
from magnetar.config.ledger import LedgerConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.wire.bookkeeper.digests import DigestType, Entry

SECRET = PASSWORD.encode()


@asynccontextmanager
async def our_client(zookeeper: str, **ledger: Any) -> AsyncIterator[LedgerClient]:
    """With a metadata session and connections of its own; `ledger` are settings of that section."""
    config = replace(Config(), metadata=MetadataConfig(url=f"zk://{zookeeper}"), ledger=LedgerConfig(**ledger))
    runtime = SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        yield client


async def create(client: LedgerClient, quorum: Quorum, **choices: Any) -> LedgerWriter:
    """With the checks' password unless another one is given."""
    return await client.create(
        ensemble_size=quorum.ensemble, write_quorum=quorum.write, ack_quorum=quorum.ack,
        **{"password": SECRET, **choices},
    )  # fmt: skip


async def open_ledger(client: LedgerClient, ledger_id: int, *, recover: bool = True, **choices: Any) -> LedgerReader:
    return await client.open(ledger_id, recover=recover, **{"password": SECRET, **choices})


async def write(
    writer: LedgerWriter,
    count: int,
    *,
    in_flight: int = 1,
    size: int = ENTRY_BYTES,
    on_added: Callable[[int], None] | None = None,
) -> None:
    """Every add must be acknowledged, in order; raises what the first failed one does."""
    first = writer.last_pushed + 1
    waiting: deque[asyncio.Future[int]] = deque()
    try:
        for entry_id in range(first, first + count):
            if len(waiting) >= in_flight:
                await _acknowledged(waiting, on_added)
            waiting.append(writer.enqueue(body(writer.ledger_id, entry_id, size)))
        while waiting:
            await _acknowledged(waiting, on_added)
    except MagnetarError:
        await asyncio.gather(*waiting, return_exceptions=True)  # They all know that they failed; nobody else asks.
        raise
    assert writer.last_confirmed == first + count - 1


async def _acknowledged(waiting: deque[asyncio.Future[int]], on_added: Callable[[int], None] | None) -> None:
    entry_id = await waiting.popleft()
    if on_added is not None:
        on_added(entry_id)


class Flight:
    """A writer that goes on until it fails."""

    def __init__(self, writer: LedgerWriter, *, in_flight: int) -> None:
        self.acknowledged = 0
        self._writing = asyncio.create_task(write(writer, 2**40, in_flight=in_flight, on_added=self._on_added))

    def _on_added(self, entry_id: int) -> None:
        assert entry_id == self.acknowledged, (
            f"entry {entry_id} was acknowledged when it was {self.acknowledged}'s turn"
        )
        self.acknowledged += 1

    async def enough(self, count: int) -> bool:
        if self._writing.done():
            await self._writing
        return self.acknowledged >= count

    async def end(self) -> str:
        """Waits for the first add that fails: the name of the error."""
        return await error_of(asyncio.wait_for(self._writing, 60))


async def verify(reader: LedgerReader, last: int, *, first: int = 0, size: int = ENTRY_BYTES) -> None:
    """Each entry is there once, in order, with the bytes that were written."""
    wanted = first
    async for entry in reader.entries(first, last):
        check(reader.ledger_id, entry, wanted, size)
        wanted += 1
    assert wanted == last + 1, f"entries end before {wanted}, not after {last}"


def check(ledger_id: int, entry: Entry, wanted: int, size: int = ENTRY_BYTES) -> None:
    assert entry.entry_id == wanted, f"entry {entry.entry_id} came when it was {wanted}'s turn"
    assert entry.payload == body(ledger_id, wanted, size), f"entry {wanted} came back with other bytes"


async def error_of(doing: Awaitable[object]) -> str:
    """The name of our error, `nothing` if there was none."""
    try:
        await doing
    except MagnetarError as error:
        return type(error).__name__
    return "nothing"


DIGESTS = {
    "CRC32C": DigestType.CRC32C,
    "MAC": DigestType.HMAC,
    "CRC32": DigestType.CRC32,
    "DUMMY": DigestType.DUMMY,
}
"""Apache's name → ours."""
