"""Ledgers whose replicas may be lost, and the wait until a cluster has restored them.

Payloads are those that replica_count.py expects. A cluster is healed when no ledger is marked and no ledger has entries
on a bookie that is gone; whether the replicas are really there is what replica_count.py judges. A fragment may name a
bookie that is gone if its entries are all on the others: an open ledger that lost a bookie early has such a fragment.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Collection, Sequence
from typing import Any, Final

from magnetar.autorecovery.fragments import bookies_with_entries
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.store import MetadataStore
from workloads.replica_count import payload_of

QUORUM: Final[dict[str, Any]] = {"ensemble_size": 3, "write_quorum": 2, "ack_quorum": 2}
REPLICAS: Final = 2
_IN_FLIGHT: Final = 64
_POLL_S: Final = 0.05


async def append(writer: LedgerWriter, seed: int, entries: int, size: int) -> None:
    """Appends the next entries, and waits for all of them."""
    first = writer.last_pushed + 1
    for at in range(first, first + entries, _IN_FLIGHT):
        run = range(at, min(at + _IN_FLIGHT, first + entries))
        payloads = [payload_of(seed, writer.ledger_id, entry, size) for entry in run]
        await asyncio.gather(*[writer.enqueue(payload) for payload in payloads])


async def write_ledgers(client: LedgerClient, seed: int, ledgers: int, entries: int, size: int) -> list[int]:
    """Returns the ids of new closed ledgers."""
    ids: list[int] = []
    for _ in range(ledgers):
        async with await client.create(**QUORUM) as writer:
            await append(writer, seed, entries, size)
            await writer.close()
        ids.append(writer.ledger_id)
    return ids


class Healing:
    """What the metadata says of a repair."""

    def __init__(self, store: MetadataStore, ledgers: LedgerMetadataStore) -> None:
        self.marks = UnderreplicationMarks(store, BookKeeperPaths())
        self.ledgers = ledgers

    async def marked(self) -> list[LedgerId]:
        return [ledger_id async for ledger_id in self.marks.list()]

    async def naming(self, ids: Sequence[int], bookies: Collection[str]) -> list[int]:
        """Returns the ledgers that have entries on one of these bookies, or may get some."""
        found = []
        for ledger_id in ids:
            metadata = (await self.ledgers.read(LedgerId(ledger_id))).value
            if not bookies_with_entries(metadata).isdisjoint(bookies):
                found.append(ledger_id)
        return found

    async def wait_marked(self, *, seconds: float) -> float:
        """Returns the moment, on the monotonic clock, at which a ledger is marked."""
        deadline = time.monotonic() + seconds
        while not await self.marked():
            if time.monotonic() > deadline:
                raise AssertionError(f"no ledger was marked within {seconds:g} s")
            await asyncio.sleep(_POLL_S)
        return time.monotonic()

    async def wait_healed(self, ids: Sequence[int], gone: Collection[str], *, seconds: float) -> None:
        deadline = time.monotonic() + seconds
        left: list[int] = []
        while (marked := await self.marked()) or (left := await self.naming(ids, gone)):
            if time.monotonic() > deadline:
                raise AssertionError(
                    f"not healed within {seconds:g} s: {len(marked)} ledgers are marked ({marked[:5]}), "
                    f"{len(left)} have entries on a bookie that is gone ({left[:5]})"
                )
            await asyncio.sleep(_POLL_S)
