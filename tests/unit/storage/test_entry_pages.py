"""Which entries are here, page by page: from both caches and the index, whatever happens meanwhile."""

from __future__ import annotations

import asyncio
from random import Random

import pytest

from magnetar.runtime.runtime import Runtime
from magnetar.sim.machine import SimMachine
from magnetar.storage.index.extents import BlockPlace, Extent, extents_of
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.index.ordered_store import MemoryStore
from magnetar.storage.ledger_storage import entry_pages
from magnetar.storage.write_cache import WriteCache

LEDGER = 7


@pytest.fixture
def runtime() -> Runtime:
    return SimMachine("pages").start()


def an_index(runtime: Runtime) -> LocationIndex:
    return LocationIndex(MemoryStore(), runtime.offload(name="reading"), runtime.offload(name="writing"))


def block(entry_ids: list[int], log_id: int = 1) -> list[Extent]:
    return list(extents_of(LEDGER, sorted(entry_ids), BlockPlace(log_id, 100, 1000)))


def a_cache(entry_ids: list[int]) -> WriteCache:
    cache = WriteCache()
    for entry_id in entry_ids:
        cache.put_run(LEDGER, b"x" * 100, [entry_id], [28], [72])
    return cache


@pytest.mark.parametrize("seed", range(20))
async def test_pages_together_are_everything_once_and_in_order(runtime: Runtime, seed: int) -> None:
    random = Random(seed)
    index = an_index(runtime)
    groups = [[random.randrange(3_000) for _ in range(random.randrange(200))] for _ in range(8)]
    for log_id, group in enumerate(groups[:6]):
        await index.apply(IndexBatch(extents=block(sorted(set(group)), log_id) if group else []))
    caches = [a_cache(group) for group in groups[6:]]
    pages = [page async for page in entry_pages(index, caches, LEDGER, random.choice((1, 7, 100, 10_000)))]
    assert all(pages), "no page is empty"
    assert [entry_id for page in pages for entry_id in page] == sorted({one for group in groups for one in group})
    await index.aclose()


async def test_page_has_about_as_many_as_were_asked_for(runtime: Runtime) -> None:
    index = an_index(runtime)
    await index.apply(IndexBatch(extents=[e for at in range(0, 9_000, 50) for e in block(list(range(at, at + 50)))]))
    pages = [page async for page in entry_pages(index, [a_cache(list(range(9_000, 12_000)))], LEDGER, 100)]
    assert sum(map(len, pages)) == 12_000
    assert max(map(len, pages)) <= 200
    await index.aclose()


async def test_entries_that_a_flush_or_a_compaction_moves_meanwhile_are_not_missed(runtime: Runtime) -> None:
    index = an_index(runtime)
    early, late, cached = block([0, 1]), block([50, 51]), [60, 61]
    await index.apply(IndexBatch(extents=[*early, *late]))
    pages = entry_pages(index, [a_cache(cached)], LEDGER, 2)
    found = await anext(pages)
    together = block([1, 50, 51, 60, 61], log_id=2)  # Begins before where the listing is now.
    await index.apply(IndexBatch(removed=late, extents=together))
    found += [entry_id async for page in pages for entry_id in page]
    assert found == [0, 1, 50, 51, 60, 61]
    await index.aclose()


async def test_others_have_their_turn_between_two_pages(runtime: Runtime) -> None:
    index = an_index(runtime)
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    other = asyncio.create_task(count())
    seen = [turns async for _page in entry_pages(index, [a_cache(list(range(1_000)))], LEDGER, 100)]
    assert len(seen) == len(set(seen)) == 10
    other.cancel()
    await asyncio.gather(other, return_exceptions=True)
    await index.aclose()
