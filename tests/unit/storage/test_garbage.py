"""Garbage collection: what the metadata does not name is deleted, and nothing else, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.errors import LedgerMissingError, MetadataUnavailableError
from magnetar.storage.entry_log.compaction import GarbageCollector
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from tests.unit.storage.samples import KEY, World, add, entry_bytes, listed, small_config


class Catalogue:
    """The metadata of a cluster, with hooks between the steps of a round."""

    def __init__(self, *ledgers: int) -> None:
        self.ledgers = set(ledgers)
        self.is_usable = True
        self.unlisted: set[int] = set()
        """There, but the listing misses them."""
        self.unreadable: set[int] = set()
        self.list_fails = False
        self.steps: list[str] = []
        self.before_listing: Callable[[], None] = lambda: None

    async def refresh(self) -> None:
        self.steps.append("refresh")

    async def list(self) -> AsyncIterator[int]:
        self.steps.append("list")
        self.before_listing()
        for ledger_id in sorted(self.ledgers - self.unlisted):
            yield ledger_id
        if self.list_fails:
            raise MetadataUnavailableError("the listing broke off")

    async def exists(self, ledger_id: int) -> bool:
        self.steps.append(f"exists {ledger_id}")
        if ledger_id in self.unreadable:
            raise MetadataUnavailableError("no answer")
        return ledger_id in self.ledgers


@pytest.fixture
async def storage() -> AsyncIterator[LedgerStorage]:
    world = World()
    opened = await world.open()
    yield opened
    await opened.aclose()


def fill(storage: LedgerStorage, *ledgers: int) -> None:
    for ledger_id in ledgers:
        add(storage, [entry_bytes(ledger_id, entry) for entry in range(3)])


def collector(storage: LedgerStorage, catalogue: Catalogue, ledgers_max: int = 100) -> GarbageCollector:
    return GarbageCollector(storage, catalogue, lambda _: None, ledgers_max)


async def test_a_ledger_that_is_gone_from_the_metadata_is_deleted(storage: LedgerStorage) -> None:
    fill(storage, 1, 2)
    await storage.flush()
    fill(storage, 3, 4)  # Not flushed.
    forgotten: list[int] = []
    garbage = GarbageCollector(storage, Catalogue(1, 3), forgotten.append, 100)
    assert await garbage.collect() == 2
    assert forgotten == [2, 4]
    assert await storage.list_ledgers() == [1, 3]
    for ledger_id in (2, 4):
        with pytest.raises(LedgerMissingError):
            await storage.get_entry(ledger_id, 0)
    assert (garbage.statistics.deleted, garbage.statistics.ledgers, garbage.statistics.rounds) == (2, 4, 1)


async def test_a_ledger_of_which_only_flags_are_here_is_deleted(storage: LedgerStorage) -> None:
    storage.set_flags(5, LedgerFlags(master_key=KEY))
    storage.set_flags(6, LedgerFlags(master_key=KEY, fenced=True))
    await storage.flush()
    assert await collector(storage, Catalogue()).collect() == 2
    assert await storage.get_flags(5) is None
    fence = await storage.get_flags(6)
    assert fence is not None
    assert fence.fenced
    assert fence.deleted_at_ms is not None


async def test_a_tombstone_is_not_deleted_again(storage: LedgerStorage) -> None:
    storage.set_flags(6, LedgerFlags(master_key=KEY, fenced=True))
    await storage.flush()
    garbage = collector(storage, Catalogue())
    assert await garbage.collect() == 1
    assert await garbage.collect() == 0
    assert storage.tombstones.count == 1


async def test_ledgers_made_and_written_while_the_metadata_is_listed_stay(storage: LedgerStorage) -> None:
    """Listed before the metadata, or they would be here and not in a listing that is a moment old."""
    fill(storage, 1)
    catalogue = Catalogue(1)
    catalogue.unlisted.add(2)

    def created_and_written() -> None:
        catalogue.ledgers.add(2)
        fill(storage, 2)

    catalogue.before_listing = created_and_written
    assert await collector(storage, catalogue).collect() == 0
    assert catalogue.steps == ["refresh", "list"], "nothing that was here is missing there"
    assert await storage.list_ledgers() == [1, 2]


async def test_a_listing_that_misses_a_ledger_does_not_delete_it(storage: LedgerStorage) -> None:
    fill(storage, 1, 2)
    catalogue = Catalogue(1, 2)
    catalogue.unlisted.add(2)
    garbage = collector(storage, catalogue)
    assert await garbage.collect() == 0
    assert garbage.statistics.spared == 1
    assert await storage.list_ledgers() == [1, 2]


async def test_a_ledger_whose_metadata_cannot_be_read_stays_and_the_others_go(storage: LedgerStorage) -> None:
    fill(storage, 1, 2, 3)
    catalogue = Catalogue()
    catalogue.unreadable.add(2)
    garbage = collector(storage, catalogue)
    assert await garbage.collect() == 2
    assert await storage.list_ledgers() == [2]
    assert garbage.statistics.doubtful == 1


async def test_a_listing_that_breaks_off_deletes_nothing(storage: LedgerStorage) -> None:
    fill(storage, 1, 2)
    catalogue = Catalogue()
    catalogue.list_fails = True
    garbage = collector(storage, catalogue)
    assert await garbage.collect() == 0
    assert await storage.list_ledgers() == [1, 2]
    assert garbage.statistics.rounds_given_up == 1
    assert not any(step.startswith("exists") for step in catalogue.steps)


async def test_without_a_usable_session_nothing_is_asked_and_nothing_deleted(storage: LedgerStorage) -> None:
    fill(storage, 1)
    catalogue = Catalogue()
    catalogue.is_usable = False
    assert await collector(storage, catalogue).collect() == 0
    assert catalogue.steps == []
    assert await storage.list_ledgers() == [1]


async def test_a_round_deletes_no_more_than_its_limit_and_the_next_goes_on(storage: LedgerStorage) -> None:
    fill(storage, *range(5))
    garbage = collector(storage, Catalogue(), ledgers_max=3)
    assert await garbage.collect() == 3
    assert await storage.list_ledgers() == [3, 4]
    assert await garbage.collect() == 2


async def test_full_tombstones_keep_fences_and_let_all_entries_go() -> None:
    world = World(config=small_config(tombstones_max=1))
    storage = await world.open()
    for ledger_id in (1, 2):
        storage.set_flags(ledger_id, LedgerFlags(master_key=KEY, fenced=True))
    storage.set_flags(3, LedgerFlags(master_key=KEY))
    fill(storage, 1, 2, 3)
    await storage.flush()
    garbage = collector(storage, Catalogue())
    assert await garbage.collect() == 3
    assert await storage.list_ledgers() == []
    assert (await storage.get_flags(2) or LedgerFlags()).fenced
    assert await garbage.collect() == 0
    assert garbage.statistics.doubtful == 1
    await storage.aclose()


async def test_a_damaged_ledger_does_not_keep_the_others_from_going() -> None:
    world = World()
    storage = await world.open()
    fill(storage, 1, 2, 3)
    await storage.flush()
    catalogue = Catalogue()
    exists = catalogue.exists

    async def damage_on_the_way(ledger_id: int) -> bool:
        if ledger_id == 2:
            storage.set_flags(2, LedgerFlags(master_key=KEY))
            await storage.flush()
            world.image.flip_bit(b"F" + (2).to_bytes(8, "big"), 9)
        return await exists(ledger_id)

    catalogue.exists = damage_on_the_way  # type: ignore[method-assign]
    assert await collector(storage, catalogue).collect() == 2
    assert await storage.list_ledgers() == [2]
    await storage.aclose()


async def test_a_fence_that_comes_while_its_ledger_is_being_deleted_is_not_lost(storage: LedgerStorage) -> None:
    fill(storage, 1)
    await storage.flush()
    deleting = asyncio.create_task(storage.delete_ledger(1))
    apply = storage.index.apply

    async def fenced_meanwhile(batch: object) -> None:
        storage.set_flags(1, LedgerFlags(master_key=KEY, fenced=True))
        await apply(batch)  # type: ignore[arg-type]

    storage.index.apply = fenced_meanwhile  # type: ignore[assignment,method-assign]
    await deleting
    storage.index.apply = apply  # type: ignore[method-assign]
    flags = await storage.get_flags(1)
    assert flags is not None
    assert flags.fenced
    assert await listed(storage, 1) == []
    await storage.flush()
    assert await collector(storage, Catalogue()).collect() == 1
    buried = await storage.get_flags(1)
    assert buried is not None
    assert buried.fenced
    assert buried.deleted_at_ms is not None
