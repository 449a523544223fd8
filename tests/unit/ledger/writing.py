"""A cluster and a client for tests of writers, with metadata that can be steered.

The retry deadline is that of production unless a test says otherwise, as a busy machine's disk may be slow.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import MagnetarError, OutcomeUnknownError
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, Versioned
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.quorum.sizes import write_set
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import V2, ReadEntry
from tests.clusters import new_cluster

QUICK: dict[str, Any] = {
    "add_quorum_timeout_ms": 20_000,
    "reconnect_backoff_ms": 5,
    "reconnect_backoff_max_ms": 50,
    "connect_timeout_ms": 2_000,
}


class SteeredLedgers(LedgerMetadataStore):
    """The real store of ledger metadata, whose updates a test may delay, precede or lose the answers of."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.gate = asyncio.Event()
        self.gate.set()
        self.waiting = 0
        self.updates = 0
        self.before: list[Callable[[], Any]] = []
        """Each is done before one update: what another client does at the worst moment."""
        self.lost: list[bool] = []
        """For the next updates: the answer is lost, of one that was done (True) or was not."""
        self.errors: list[MagnetarError] = []

    async def update(self, metadata: LedgerMetadata, version: int) -> Versioned[LedgerMetadata]:
        self.waiting += 1
        await self.gate.wait()
        self.waiting -= 1
        if self.before:
            await self.before.pop(0)()
        if self.errors:
            raise self.errors.pop(0)
        if self.lost:
            if self.lost.pop(0):
                await super().update(metadata, version)
            raise OutcomeUnknownError("the connection was lost; it may or may not have been done")
        updated = await super().update(metadata, version)
        self.updates += 1
        return updated

    async def change(self, ledger_id: int, make: Callable[[LedgerMetadata], LedgerMetadata]) -> None:
        """As another client would."""
        found = await self.read(LedgerId(ledger_id))
        await LedgerMetadataStore.update(self, make(found.value), found.version)


class WriterWorld:
    def __init__(self, cluster: BookieCluster, client: LedgerClient) -> None:
        self.cluster = cluster
        self.client = client
        metadata = client.context.metadata
        self.ledgers = SteeredLedgers(metadata.store, cluster.paths, metadata.entropy)
        client.context = client.context._replace(metadata=metadata._replace(ledgers=self.ledgers))

    async def codes(self, writer: LedgerWriter, entry_id: int, bookies: Sequence[str]) -> list[Code]:
        """What each of these bookies says when asked for the entry."""
        found: list[Code] = []
        for bookie in bookies:
            channel = await self.client.bookies.channel(self.cluster.node(bookie).bookie_id)
            request = ReadEntry(writer.ledger_id, entry_id, version=V2)
            found.append((await channel.request(request, timeout_s=5)).code)
        return found

    async def holders(self, writer: LedgerWriter, entry_id: int) -> list[str]:
        """The running bookies that have the entry."""
        running = [node.bookie_id for node in self.cluster.nodes if node.is_running]
        codes = await self.codes(writer, entry_id, running)
        return [bookie for bookie, code in zip(running, codes, strict=True) if code is Code.EOK]

    async def payloads(self, writer: LedgerWriter) -> list[bytes]:
        """Returns the payloads of the closed ledger, read back."""
        reader = await self.client.open(writer.ledger_id)
        return [bytes(entry.payload) async for entry in reader]


@contextlib.asynccontextmanager
async def writer_world(bookies: int, *, in_process: bool = False, **ledger: Any) -> AsyncIterator[WriterWorld]:
    config = small_config(ledger=LedgerConfig(**{**QUICK, **ledger}))
    config = dataclasses.replace(config, placement=dataclasses.replace(config.placement, quarantine_errors=1_000))
    async with (
        new_cluster(bookies, config=config) as cluster,
        LedgerClient(cluster.store, config, cluster.runtime, local=cluster.local if in_process else None) as client,
    ):
        yield WriterWorld(cluster, client)


def bodies(first: int, count: int) -> list[bytes]:
    return [b"entry-%d" % number for number in range(first, first + count)]


def ensembles(writer: LedgerWriter) -> list[tuple[int, tuple[str, ...]]]:
    return [(fragment.first_entry_id, fragment.ensemble) for fragment in writer.metadata.fragments]


async def add_all(writer: LedgerWriter, first: int, count: int) -> list[int]:
    return list(await asyncio.gather(*[writer.add(body) for body in bodies(first, count)]))


async def assert_replicated(world: WriterWorld, writer: LedgerWriter, count: int) -> None:
    """Every entry can be read, and enough of those whom the metadata names have it."""
    metadata = await world.client.metadata(writer.ledger_id)
    for entry_id in range(count):
        ensemble = metadata.fragment_of(entry_id).ensemble  # type: ignore[arg-type]
        named = [ensemble[p] for p in write_set(metadata.ensemble_size, metadata.write_quorum, entry_id)]
        holders = await world.holders(writer, entry_id)
        running = [bookie for bookie in named if world.cluster.node(bookie).is_running]
        assert len([bookie for bookie in running if bookie in holders]) >= min(metadata.ack_quorum, len(running))
    assert await world.payloads(writer) == bodies(0, count)
