from __future__ import annotations

import asyncio
import dataclasses

import pytest

from magnetar.config.ledger import LedgerConfig
from magnetar.errors import EntryAbsentError, EntryDamagedError, EntryUnavailableError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, Finding
from magnetar.ledger.reading.reads import EntryReads
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, Entry
from magnetar.wire.bookkeeper.messages import ReadEntry
from tests.unit.ledger.worlds import QUICK, World, ledger_world, length_up_to, payload_of

pytestmark = pytest.mark.virtual_time

SINGLE = dataclasses.replace(QUICK, batch_reads=False)
FEW = dataclasses.replace(SINGLE, requests_in_flight_max=3)
PATIENT = dataclasses.replace(QUICK, read_timeout_ms=60_000, speculative_read_max_ms=50)


def reads_of(world: World) -> EntryReads:
    return EntryReads(world.keys, world.context.bookies, world.context.config, world.context.entropy)


async def read(world: World, first: int, last: int, reads: EntryReads | None = None) -> list[Entry]:
    """Chunk by chunk."""
    reads = reads or reads_of(world)
    entries: list[Entry] = []
    while first <= last:
        entries += await reads.read_chunk(world.stored.value, EntryId(first), EntryId(last))
        first = entries[-1].entry_id + 1
    return entries


def assert_entries(entries: list[Entry], first: int, last: int) -> None:
    assert [entry.entry_id for entry in entries] == list(range(first, last + 1))
    for entry in entries:
        assert bytes(entry.payload) == payload_of(entry.entry_id)
        assert entry.length == length_up_to(entry.entry_id)


@pytest.mark.parametrize("sizes", [(1, 1, 1), (3, 3, 2), (4, 3, 2), (5, 2, 2)])
@pytest.mark.parametrize("config", [QUICK, SINGLE, FEW, dataclasses.replace(QUICK, read_entries_max=3)])
async def test_range_is_read_in_order_whatever_the_striping(sizes: tuple[int, int, int], config: LedgerConfig) -> None:
    async with ledger_world(sizes[0], config) as world:
        await world.create(E=sizes[0], Qw=sizes[1], Qa=sizes[2])
        for entry_id in range(30):
            await world.put(entry_id)
        assert_entries(await read(world, 0, 29), 0, 29)
        assert_entries(await read(world, 7, 7), 7, 7)
        assert_entries(await read(world, 5, 22), 5, 22)


@pytest.mark.parametrize("digest", list(DigestType))
async def test_every_digest_is_read(digest: DigestType) -> None:
    async with ledger_world(2) as world:
        await world.create(E=2, Qw=2, Qa=2, digest=digest)
        for entry_id in range(4):
            await world.put(entry_id)
        assert_entries(await read(world, 0, 3), 0, 3)


@pytest.mark.parametrize("config", [QUICK, SINGLE])
async def test_range_over_fragments_is_read_from_the_bookies_of_each(config: LedgerConfig) -> None:
    async with ledger_world(4, config) as world:
        await world.create(E=2, Qw=2, Qa=1, fragments={0: [0, 1], 5: [2, 1], 9: [2, 3]})
        for entry_id in range(14):
            await world.put(entry_id)
        assert_entries(await read(world, 2, 13), 2, 13)


@pytest.mark.parametrize("config", [QUICK, SINGLE])
@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
async def test_lost_bookies_are_made_up_for_by_the_others(sizes: tuple[int, int, int], config: LedgerConfig) -> None:
    async with ledger_world(sizes[0], config) as world:
        await world.create(E=sizes[0], Qw=sizes[1], Qa=sizes[2])
        for entry_id in range(20):
            await world.put(entry_id)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        assert_entries(await read(world, 0, 19), 0, 19)


@pytest.mark.parametrize("config", [QUICK, SINGLE])
async def test_entry_that_only_one_bookie_has_is_found(config: LedgerConfig) -> None:
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(12):
            await world.put(entry_id, on=[entry_id % 3])
        assert_entries(await read(world, 0, 11), 0, 11)


@pytest.mark.parametrize("config", [QUICK, SINGLE])
async def test_damaged_copy_is_never_returned(config: LedgerConfig) -> None:
    async with ledger_world(3, config) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(9):
            for position, bookie in enumerate(world.ensemble):
                await world.put_at(bookie, entry_id, damaged=position != entry_id % 3)
        assert_entries(await read(world, 0, 8), 0, 8)


async def test_entry_that_nobody_has_is_absent() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        with pytest.raises(EntryAbsentError, match="entry 1 of ledger 7 is on none of its bookies") as caught:
            await read(world, 1, 1)
        assert not caught.value.retryable
        with pytest.raises(EntryAbsentError, match="entry 1 of"):
            await read(world, 0, 5)


async def test_entry_that_is_damaged_everywhere_is_told_as_damaged() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put_at(world.ensemble[0], 0, damaged=True)
        await world.put_at(world.ensemble[1], 0, damaged=True)
        with pytest.raises(EntryDamagedError, match="check the disks") as caught:
            await read(world, 0, 0)
        assert not caught.value.retryable
        assert world.ensemble[2] in str(caught.value)


async def test_entry_that_a_lost_bookie_may_have_is_unavailable_not_absent() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0, on=[0])
        await world.cluster.kill(0)
        with pytest.raises(EntryUnavailableError, match="did not answer") as caught:
            await read(world, 0, 0)
        assert caught.value.retryable
        assert not isinstance(caught.value, EntryDamagedError)


@pytest.mark.parametrize("sizes", [(3, 3, 2), (4, 3, 2)])
@pytest.mark.parametrize("batch", [True, False])
async def test_silent_bookie_costs_the_speculation_delay_and_not_its_time_out(
    sizes: tuple[int, int, int], batch: bool
) -> None:
    async with ledger_world(sizes[0], dataclasses.replace(PATIENT, batch_reads=batch)) as world:
        await world.create(E=sizes[0], Qw=sizes[1], Qa=sizes[2])
        for entry_id in range(12):
            await world.put(entry_id)
        world.cluster.hang(1)
        async with asyncio.timeout(20):
            assert_entries(await read(world, 0, 11), 0, 11)


async def test_bookie_that_was_silent_is_asked_last_for_a_while() -> None:
    async with ledger_world(3, PATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(12):
            await world.put(entry_id)
        reads = reads_of(world)
        for number in (0, 1, 2):
            first = world.cluster.index_of(reads._order(world.stored.value, EntryId(0))[0])
            world.cluster.hang(first)
            assert_entries([*await reads.read_chunk(world.stored.value, EntryId(0), EntryId(0))], 0, 0)
            order = reads._order(world.stored.value, EntryId(0))
            assert order[-1] == world.cluster.bookie_ids[first], number
            world.cluster.wake(first)


async def test_silent_bookie_of_a_striped_ledger_is_not_asked_first_again(monkeypatch: pytest.MonkeyPatch) -> None:
    """So it costs the speculation delay once."""
    first_asked: dict[int, BookieId] = {}
    ask = EntryReads._ask

    async def noted(reads: EntryReads, bookie: BookieId, request: ReadEntry) -> Answer:
        first_asked.setdefault(request.entry_id, bookie)
        return await ask(reads, bookie, request)

    monkeypatch.setattr(EntryReads, "_ask", noted)
    async with ledger_world(3, PATIENT) as world:
        await world.create(E=3, Qw=2, Qa=2)
        for entry_id in range(9):
            await world.put(entry_id)
        reads = reads_of(world)
        silent = world.cluster.bookie_ids[0]
        world.cluster.hang(0)
        assert_entries(await read(world, 0, 8, reads), 0, 8)
        assert silent not in [first_asked[entry_id] for entry_id in (0, 3, 6)]
        assert [reads._order(world.stored.value, EntryId(entry_id))[-1] for entry_id in (0, 3, 6)] == [silent] * 3


async def test_sticky_reader_stays_with_one_bookie() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(12):
            await world.put(entry_id)
        reads = reads_of(world)
        for entry_id in range(12):
            await read(world, entry_id, entry_id, reads)
        served = [node.running._requests._reads.served for node in world.cluster.nodes]
        assert sorted(served) == [0, 0, 12]


async def test_reads_that_do_not_stick_follow_the_write_set() -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, sticky_reads=False)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(12):
            await world.put(entry_id)
        reads = reads_of(world)
        for entry_id in range(12):
            await read(world, entry_id, entry_id, reads)
        assert [node.running._requests._reads.served for node in world.cluster.nodes] == [4, 4, 4]


async def test_batch_never_brings_more_than_was_asked_for() -> None:
    async with ledger_world(1) as world:
        await world.create(E=1, Qw=1, Qa=1)
        for entry_id in range(10):
            await world.put(entry_id)
        chunk = await reads_of(world).read_chunk(world.stored.value, EntryId(2), EntryId(5))
        assert [entry.entry_id for entry in chunk] == [2, 3, 4, 5]


async def test_batch_stays_within_its_bytes() -> None:
    async with ledger_world(1, dataclasses.replace(QUICK, read_batch_bytes_max=300)) as world:
        await world.create(E=1, Qw=1, Qa=1)
        for entry_id in range(20):
            await world.put(entry_id)
        reads = reads_of(world)
        chunk = await reads.read_chunk(world.stored.value, EntryId(0), EntryId(19))
        assert 1 <= len(chunk) < 10
        assert_entries(await read(world, 0, 19, reads), 0, 19)


async def test_run_of_large_entries_is_short() -> None:
    async with ledger_world(3, dataclasses.replace(SINGLE, read_batch_bytes_max=200)) as world:
        await world.create(E=3, Qw=2, Qa=2)
        for entry_id in range(60):
            await world.put(entry_id)
        reads = reads_of(world)
        await reads.read_chunk(world.stored.value, EntryId(0), EntryId(59))
        chunk = await reads.read_chunk(world.stored.value, EntryId(20), EntryId(59))
        assert 1 <= len(chunk) <= 4


async def test_cancelled_read_leaves_nothing_behind() -> None:
    async with ledger_world(3, PATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        for number in range(3):
            world.cluster.hang(number)
        before = len(asyncio.all_tasks())
        reading = asyncio.ensure_future(read(world, 0, 0))
        for _ in range(10):
            await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
        assert len(asyncio.all_tasks()) == before
        for number in range(3):
            world.cluster.wake(number)


class Busy:
    """The bookies of these reads have too many requests, a number of times in all."""

    def __init__(self, reads: EntryReads, times: int) -> None:
        self.left = times
        self._ask = reads._ask
        reads._ask = self._refuse  # type: ignore[method-assign]

    async def _refuse(self, bookie: BookieId, request: ReadEntry) -> Answer:
        if self.left == 0:
            return await self._ask(bookie, request)
        self.left -= 1
        return Answer(Finding.REFUSED, code=Code.ETOOMANYREQUESTS, why=Code.ETOOMANYREQUESTS.name)


async def test_bookies_that_have_too_many_requests_for_a_moment_are_asked_again() -> None:
    async with ledger_world(3, PATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        reads = reads_of(world)
        busy = Busy(reads, 9)  # Three times each.
        assert_entries(await read(world, 0, 0, reads), 0, 0)
        assert busy.left == 0


async def test_bookies_that_always_have_too_many_requests_are_named_when_a_read_has_taken_its_time() -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, read_timeout_ms=100)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        reads = reads_of(world)
        Busy(reads, 1_000_000)
        with pytest.raises(EntryUnavailableError, match="ETOOMANYREQUESTS"):
            await read(world, 0, 0, reads)


async def test_an_entry_is_found_beside_bookies_that_have_too_many_requests_without_a_pause() -> None:
    async with ledger_world(3, PATIENT) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        reads = reads_of(world)
        Busy(reads, 2)
        reads._random = None  # type: ignore[assignment]  # A pause would need it.
        assert_entries(await read(world, 0, 0, reads), 0, 0)


async def test_a_bookie_with_too_many_requests_is_asked_again_although_another_was_silent_for_its_whole_time() -> None:
    async with ledger_world(2, dataclasses.replace(QUICK, read_timeout_ms=100)) as world:
        await world.create(E=2, Qw=2, Qa=2)
        await world.put(0)
        reads = reads_of(world)
        _, other = reads._order(world.stored.value, EntryId(0))
        world.cluster.hang(other)
        Busy(reads, 1)  # It is the first that is asked.
        assert_entries(await read(world, 0, 0, reads), 0, 0)
        world.cluster.wake(other)
