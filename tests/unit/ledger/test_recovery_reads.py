"""Which bookies recovery asks for which entry, and when it asks the others."""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Sequence

import pytest

from magnetar.errors import WrongPasswordError
from magnetar.ids import EntryId
from magnetar.ledger.recovery.fence import Fenced, FencingReads, fence
from magnetar.ledger.recovery.reads import RecoveryReads
from magnetar.wire.bookkeeper.digests import master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from tests.unit.ledger.worlds import QUICK, World, ledger_world

pytestmark = pytest.mark.virtual_time

Asked = list[tuple[int, list[int]]]


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    """(position, entries) of everything that is asked."""
    seen: Asked = []
    ask = FencingReads.ask

    def record(self: FencingReads, position: int, entry_ids: Sequence[int]) -> None:
        seen.append((position, list(entry_ids)))
        ask(self, position, entry_ids)

    monkeypatch.setattr(FencingReads, "ask", record)
    return seen


def until_s(seconds: float = 20) -> float:
    return asyncio.get_running_loop().time() + seconds


async def fenced(world: World) -> Fenced:
    return await fence(world.stored.value, world.keys, world.context, until_s())


async def found(world: World, first: int, told: Fenced) -> list[int]:
    reads = RecoveryReads(world.stored.value, EntryId(first), world.keys, world.context, until_s(), told)
    entry_ids = []
    while (entry := await reads.next()) is not None:
        entry_ids.append(entry.entry_id)
    await reads.aclose()
    return entry_ids


async def test_entries_that_the_fence_told_of_are_read_once_and_only_the_end_is_asked_of_all(asked: Asked) -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, speculative_read_min_ms=200)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(10):
            await world.put(entry_id, lac=-1)
        told = await fenced(world)
        assert asked == [(position, [LAST_ENTRY]) for position in range(3)]
        asked.clear()
        assert await found(world, 0, told) == list(range(10))
        entries = [entry_id for _, entry_ids in asked for entry_id in entry_ids]
        assert len(asked) == 3  # All at once, one call for each bookie.
        assert sorted(entries) == [*range(10), 10, 10, 10]


async def test_others_are_asked_at_once_for_what_the_first_does_not_have(asked: Asked) -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, speculative_read_min_ms=200)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(6):
            holders = [0, 1, 2] if entry_id != 3 else [2]
            await world.put(entry_id, on=holders, lac=-1)
        told = Fenced({0: (await fenced(world)).last_entries.popitem()[1]}, 60.0)  # type: ignore[attr-defined]
        world.cluster.hang(
            1
        )  # Without it the two that lack the entry might answer first, and decide that it is absent.
        asked.clear()
        assert await found(world, 0, told) == list(range(6))
        world.cluster.wake(1)
        assert [3] in [entry_ids for position, entry_ids in asked if position == 2]


async def test_others_are_asked_when_the_first_is_slow(asked: Asked) -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, speculative_read_min_ms=1)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(6):
            await world.put(entry_id, lac=-1)
        told = await fenced(world)
        (slow,) = sorted(told.last_entries)[:1]
        told = Fenced({slow: told.last_entries[slow]}, 0.0)
        world.cluster.hang(slow)
        asked.clear()
        assert await found(world, 0, told) == list(range(6))
        assert asked[0][0] == slow
        assert len([1 for _, entry_ids in asked if 0 in entry_ids]) == 3
        world.cluster.wake(slow)


async def test_without_what_the_fence_told_everybody_is_asked_for_everything(asked: Asked) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(4):
            await world.put(entry_id, lac=-1)
        assert await found(world, 0, Fenced({}, 0.0)) == list(range(4))
        entries = [entry_id for _, entry_ids in asked for entry_id in entry_ids]
        assert all(entries.count(entry_id) == 3 for entry_id in range(5))


@pytest.mark.parametrize("sizes", [(4, 2, 2), (5, 3, 2), (4, 3, 3)])
async def test_striped_entries_are_asked_of_their_write_sets_only(asked: Asked, sizes: tuple[int, int, int]) -> None:
    E, Qw, Qa = sizes  # noqa: N806
    async with ledger_world(E) as world:
        await world.create(E=E, Qw=Qw, Qa=Qa)
        for entry_id in range(12):
            await world.put(entry_id, lac=-1)
        told = await fenced(world)
        asked.clear()
        assert await found(world, 0, told) == list(range(12))
        assert all((position - entry_id) % E < Qw for position, entry_ids in asked for entry_id in entry_ids)


async def test_last_entry_far_away_does_not_widen_the_window_beyond_its_bounds(asked: Asked) -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, recovery_reads_in_flight_max=4)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in (0, 1, 100_000):
            await world.put(entry_id, lac=-1)
        told = await fenced(world)
        asked.clear()
        assert await found(world, 0, told) == [0, 1]
        assert max(entry_id for _, entry_ids in asked for entry_id in entry_ids) <= 6


async def test_wrong_key_ends_the_reads(asked: Asked) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        asked.clear()
        wrong = dataclasses.replace(world.keys, master_key=master_key(b"wrong"))
        reads = RecoveryReads(world.stored.value, EntryId(0), wrong, world.context, until_s())
        with pytest.raises(WrongPasswordError):
            await reads.next()
        await reads.aclose()
        assert asked


async def test_bug_while_connecting_ends_the_fence_with_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)

        async def dial(*_: object) -> None:
            raise ValueError("a bug")

        monkeypatch.setattr(world.context.bookies, "_dial", dial)
        with pytest.raises(ValueError, match="a bug"):
            await fenced(world)
