"""The contract of the location index, for RocksDB and for its twin in memory alike."""

from __future__ import annotations

import asyncio
from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest

from magnetar.errors import ClosedError, DiskFullError, IndexDamagedError
from magnetar.storage.index.extents import ID_MAX, SPAN, BlockPlace, Extent, extents_of
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_flags import LedgerFlags

KEY = b"k" * 20


class IndexHarness(ABC):
    index: LocationIndex

    @abstractmethod
    async def restart(self) -> None:
        """Closes the index and opens it again; `index` is another object then."""

    @abstractmethod
    async def crash(self) -> None:
        """Works like `restart`, but nothing is closed: what was not durable is lost."""

    @abstractmethod
    async def damage(self, needle: bytes) -> None:
        """Flips a bit in the stored value whose key has these bytes in it, past whatever the store checks itself."""

    @abstractmethod
    def fill_disk(self) -> None:
        """The next `apply` finds no room."""


def extents(ledger_id: int, entry_ids: list[int] | range, log_id: int = 1, offset: int = 100) -> list[Extent]:
    return list(extents_of(ledger_id, list(entry_ids), BlockPlace(log_id, offset, 70_000)))


class LocationIndexContract:
    @pytest.fixture
    def harness(self) -> AsyncIterator[IndexHarness]:
        raise NotImplementedError("a subclass brings the implementation; it closes the index afterwards")

    async def test_entry_is_found_where_it_was_put(self, harness: IndexHarness) -> None:
        (extent,) = extents(7, range(10, 20))
        await harness.index.apply(IndexBatch(extents=[extent]))
        assert [await harness.index.find(7, entry) for entry in (10, 15, 19)] == [extent] * 3

    async def test_greatest_log_is_remembered_also_when_nothing_refers_to_it_any_more(
        self, harness: IndexHarness
    ) -> None:
        assert await harness.index.last_log() is None
        await harness.index.apply(IndexBatch(extents=[*extents(7, [1], log_id=5), *extents(7, [2], log_id=3)]))
        await harness.restart()
        await harness.index.apply(IndexBatch(deleted_ledgers=[7], extents=extents(8, [1], log_id=4)))
        assert await harness.index.last_log() == 5
        await harness.index.apply(IndexBatch(last_log=6))
        await harness.crash()
        assert await harness.index.last_log() == 6

    async def test_entries_around_an_extent_are_not_found(self, harness: IndexHarness) -> None:
        await harness.index.apply(IndexBatch(extents=extents(7, range(10, 20))))
        for ledger_id, entry_id in [(7, 9), (7, 20), (6, 15), (8, 15), (7, 0), (7, ID_MAX)]:
            assert await harness.index.find(ledger_id, entry_id) is None

    async def test_negative_and_oversized_ids_are_not_found(self, harness: IndexHarness) -> None:
        await harness.index.apply(IndexBatch(extents=extents(0, range(3))))
        for ledger_id, entry_id in [(-1, 0), (0, -1), (ID_MAX + 1, 0), (0, ID_MAX + 1), (1 << 70, 1 << 70)]:
            assert await harness.index.find(ledger_id, entry_id) is None
            assert await harness.index.find_all(ledger_id, entry_id) == []
        assert await harness.index.last_entry(-5) is None
        assert await harness.index.flags(1 << 64) is None
        assert await harness.index.extents(-1) == []

    async def test_greatest_ids_have_their_place(self, harness: IndexHarness) -> None:
        (extent,) = extents(ID_MAX, [ID_MAX - 1, ID_MAX])
        await harness.index.apply(IndexBatch(extents=[extent], flags={ID_MAX: LedgerFlags(fenced=True)}))
        assert await harness.index.find(ID_MAX, ID_MAX) == extent
        assert await harness.index.last_entry(ID_MAX) == ID_MAX
        assert await harness.index.ledgers() == [ID_MAX]
        await harness.index.apply(IndexBatch(deleted_ledgers=[ID_MAX]))
        assert await harness.index.find(ID_MAX, ID_MAX) is None
        assert await harness.index.flags(ID_MAX) is None

    async def test_gaps_inside_an_extent_are_not_entries(self, harness: IndexHarness) -> None:
        (extent,) = extents(7, [1, 2, 4, 5, 7, 1000])
        await harness.index.apply(IndexBatch(extents=[extent]))
        held = [entry for entry in range(1002) if await harness.index.find(7, entry) is not None]
        assert held == [1, 2, 4, 5, 7, 1000]

    async def test_overlapping_extents_all_count(self, harness: IndexHarness) -> None:
        """As when a recovery writes again what an earlier flush had."""
        (wide,) = extents(7, range(SPAN), log_id=1)
        (inner,) = extents(7, range(100, 110), log_id=2)
        (later,) = extents(7, [105, 2000], log_id=3)[:1]
        await harness.index.apply(IndexBatch(extents=[wide, inner]))
        await harness.index.apply(IndexBatch(extents=[later]))
        assert await harness.index.find(7, SPAN - 1) == wide
        assert await harness.index.find(7, 50) == wide
        assert await harness.index.find_all(7, 105) == [later, inner, wide]

    async def test_long_block_is_split_so_that_every_entry_is_found(self, harness: IndexHarness) -> None:
        ids = [*range(0, 3 * SPAN, 3), 10 * SPAN, ID_MAX]
        parts = extents(7, ids)
        assert all(part.ids[-1] - part.ids[0] < SPAN for part in parts)
        await harness.index.apply(IndexBatch(extents=parts))
        for entry in ids[::50] + ids[-3:]:
            found = await harness.index.find(7, entry)
            assert found is not None
            assert found.holds(entry)
        assert await harness.index.find(7, 1) is None

    async def test_the_same_extent_twice_is_one(self, harness: IndexHarness) -> None:
        for _ in range(2):
            await harness.index.apply(IndexBatch(extents=extents(7, range(3))))
        assert len(await harness.index.extents(7)) == 1

    async def test_last_entry_is_the_greatest_and_not_that_of_the_last_extent(self, harness: IndexHarness) -> None:
        assert await harness.index.last_entry(7) is None
        await harness.index.apply(IndexBatch(extents=[*extents(7, range(900)), *extents(7, [500], log_id=2)]))
        await harness.index.apply(IndexBatch(extents=extents(8, [1])))
        assert await harness.index.last_entry(7) == 899
        await harness.index.apply(IndexBatch(extents=extents(7, [5000], log_id=3)))
        assert await harness.index.last_entry(7) == 5000

    async def test_extents_come_in_order_and_in_pages(self, harness: IndexHarness) -> None:
        all_extents = [
            extent for log_id in (1, 2) for first in range(0, 50, 5) for extent in extents(7, [first], log_id)
        ]
        await harness.index.apply(IndexBatch(extents=all_extents))
        found: list[Extent] = []
        while page := await harness.index.extents(7, found[-1].ids[0] + 1 if found else 0, 3):
            found.extend(page)
        assert found == sorted(all_extents, key=lambda extent: (extent.ids[0], extent.place))

    async def test_entries_come_in_order_and_in_pages_however_their_extents_overlap(
        self, harness: IndexHarness
    ) -> None:
        batch = [*extents(7, range(0, 900, 3)), *extents(7, range(1, 900, 3), 2), *extents(7, range(300, 420), 3)]
        batch += [*extents(7, [SPAN * 2, SPAN * 2 + 1]), *extents(7, [ID_MAX], 4), *extents(8, range(5))]
        await harness.index.apply(IndexBatch(extents=batch))
        wanted = sorted({entry_id for extent in batch if extent.ledger_id == 7 for entry_id in extent.ids})
        for limit in (1, 50, 300, 10_000):
            found: list[int] = []
            following: int | None = 0
            while following is not None:
                ids, following = await harness.index.entry_ids(7, following, limit)
                found += ids
            assert found == wanted
        assert await harness.index.entry_ids(7, SPAN) == (wanted[-3:], None)
        for nobody in (6, -1, ID_MAX + 1):
            assert await harness.index.entry_ids(nobody) == ([], None)

    async def test_removed_extent_is_gone_and_no_other(self, harness: IndexHarness) -> None:
        """As compaction does it: the new place and the removal of the old one in one batch."""
        (old,) = extents(7, range(5), log_id=1)
        (new,) = extents(7, range(5), log_id=2)
        await harness.index.apply(IndexBatch(extents=[old]))
        await harness.index.apply(IndexBatch(extents=[new], removed=[old]))
        assert await harness.index.find_all(7, 3) == [new]

    async def test_deleted_ledger_leaves_its_neighbours(self, harness: IndexHarness) -> None:
        for ledger_id in (6, 7, 8):
            batch = IndexBatch(extents=extents(ledger_id, range(5)), flags={ledger_id: LedgerFlags(master_key=KEY)})
            await harness.index.apply(batch)
        await harness.index.apply(IndexBatch(deleted_ledgers=[7]))
        assert await harness.index.ledgers() == [6, 8]
        assert await harness.index.find(7, 0) is None
        assert await harness.index.last_entry(7) is None
        assert [ledger_id for ledger_id, _ in await harness.index.all_flags()] == [6, 8]

    async def test_one_batch_deletes_a_ledger_and_leaves_a_tombstone(self, harness: IndexHarness) -> None:
        await harness.index.apply(IndexBatch(extents=extents(7, range(5)), flags={7: LedgerFlags(fenced=True)}))
        tombstone = LedgerFlags(fenced=True, deleted_at_ms=5)
        await harness.index.apply(IndexBatch(deleted_ledgers=[7], flags={7: tombstone}))
        assert await harness.index.flags(7) == tombstone
        assert await harness.index.ledgers() == []
        await harness.index.apply(IndexBatch(dropped_flags=[7]))
        assert await harness.index.flags(7) is None

    async def test_flags_come_back_as_they_were(self, harness: IndexHarness) -> None:
        flags = {
            1: LedgerFlags(),
            2: LedgerFlags(master_key=KEY, fenced=True),
            3: LedgerFlags(limbo=True, explicit_lac=b"\x00" * 36),
            4: LedgerFlags(explicit_lac=b"", deleted_at_ms=1_700_000_000_000),
        }
        await harness.index.apply(IndexBatch(flags=flags))
        assert await harness.index.all_flags() == list(flags.items())
        assert await harness.index.all_flags(2, limit=2) == [(2, flags[2]), (3, flags[3])]
        assert await harness.index.flags(5) is None

    async def test_ledgers_are_listed_in_order_and_in_pages(self, harness: IndexHarness) -> None:
        await harness.index.apply(
            IndexBatch(extents=[*extents(300, [1]), *extents(2, range(9)), *extents(2, [5000]), *extents(70000, [0])])
        )
        assert await harness.index.ledgers() == [2, 300, 70000]
        assert await harness.index.ledgers(3, limit=1) == [300]

    async def test_everything_applied_is_there_after_a_crash(self, harness: IndexHarness) -> None:
        (extent,) = extents(7, [1, 5])
        await harness.index.apply(IndexBatch(extents=[extent], flags={7: LedgerFlags(master_key=KEY)}, mark=17))
        await harness.crash()
        assert await harness.index.find(7, 5) == extent
        assert await harness.index.flags(7) == LedgerFlags(master_key=KEY)
        assert await harness.index.mark() == 17

    async def test_everything_applied_is_there_after_a_restart(self, harness: IndexHarness) -> None:
        assert await harness.index.mark() is None
        await harness.index.apply(IndexBatch(extents=extents(7, range(2000)), mark=17))
        await harness.index.apply(IndexBatch(mark=18))
        await harness.restart()
        assert await harness.index.last_entry(7) == 1999
        assert await harness.index.mark() == 18

    async def test_flipped_bit_is_an_error_that_names_the_ledger(self, harness: IndexHarness) -> None:
        batch = IndexBatch(extents=[*extents(7001, range(5)), *extents(8, range(5))], flags={9001: LedgerFlags()})
        await harness.index.apply(batch)
        await harness.damage((7001).to_bytes(8, "big"))
        await harness.damage((9001).to_bytes(8, "big"))
        for call in (harness.index.find(7001, 2), harness.index.last_entry(7001), harness.index.extents(7001)):
            with pytest.raises(IndexDamagedError, match="ledger 7001"):
                await call
        with pytest.raises(IndexDamagedError, match="ledger 9001"):
            await harness.index.flags(9001)
        assert await harness.index.find(8, 2) is not None

    async def test_full_disk_changes_nothing_and_the_next_try_succeeds(self, harness: IndexHarness) -> None:
        await harness.index.apply(IndexBatch(extents=extents(6, [0])))
        harness.fill_disk()
        batch = IndexBatch(extents=extents(7, range(5)), flags={7: LedgerFlags(fenced=True)})
        with pytest.raises(DiskFullError):
            await harness.index.apply(batch)
        assert await harness.index.find(7, 0) is None
        await harness.index.apply(batch)
        assert await harness.index.find(7, 0) is not None
        assert await harness.index.find(6, 0) is not None

    async def test_reads_and_writes_at_the_same_time_see_whole_batches(self, harness: IndexHarness) -> None:
        async def write() -> None:
            for log_id in range(2, 60):
                (old,), (new,) = extents(7, range(5), log_id - 1), extents(7, range(5), log_id)
                await harness.index.apply(IndexBatch(extents=[new], removed=[old]))

        await harness.index.apply(IndexBatch(extents=extents(7, range(5), 1)))
        writing = asyncio.ensure_future(write())
        while not writing.done():
            assert await harness.index.find(7, 3) is not None
        await writing

    async def test_closed_index_refuses(self, harness: IndexHarness) -> None:
        await harness.index.aclose()
        with pytest.raises(ClosedError):
            await harness.index.find(1, 1)
        with pytest.raises(ClosedError):
            await harness.index.apply(IndexBatch())
