from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import pytest

from magnetar.errors import LacUnknownError
from magnetar.ids import BookieId, EntryId
from magnetar.ledger.channels.answers import Answer, exchange
from magnetar.ledger.channels.bookies import Bookies
from magnetar.ledger.reading.lac import lac_floor, read_lac
from magnetar.ledger.reading.tailing import LedgerView
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.messages import AnyResponse, ReadLacResponse
from tests.unit.ledger.worlds import QUICK, World, ledger_world

pytestmark = pytest.mark.virtual_time


async def lac_of(world: World, *, explicit: bool) -> int:
    return await read_lac(world.stored.value, world.keys, world.context, explicit=explicit)


both = pytest.mark.parametrize("explicit", [True, False])


@both
async def test_ledger_without_entries_has_no_lac(explicit: bool) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        assert await lac_of(world, explicit=explicit) == -1


@both
async def test_lac_is_what_the_last_entry_carries(explicit: bool) -> None:
    async with ledger_world(4) as world:
        await world.create(E=4, Qw=3, Qa=2)
        for entry_id in range(9):
            await world.put(entry_id)
        assert await lac_of(world, explicit=explicit) == 7


@both
async def test_lac_that_an_ack_quorum_knows_is_found_with_the_others_lost(explicit: bool) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(9):
            await world.put(entry_id, on=[0, 1])
        await world.cluster.kill(0)
        assert await lac_of(world, explicit=explicit) == 7


@both
async def test_too_few_answers_are_an_error_that_names_who_is_missing(explicit: bool) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        await world.cluster.kill(0)
        await world.cluster.kill(1)
        with pytest.raises(LacUnknownError, match="try again when these bookies are back") as caught:
            await lac_of(world, explicit=explicit)
        assert world.ensemble[0] in str(caught.value)
        assert caught.value.retryable


async def test_explicit_lac_is_asked_for_in_v3() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        await world.put_explicit_lac(0, on=[0, 1])
        assert await lac_of(world, explicit=True) == 0
        assert await lac_of(world, explicit=False) == -1


@both
async def test_lac_is_never_below_what_the_fragments_say(explicit: bool) -> None:
    async with ledger_world(6) as world:
        await world.create(E=3, Qw=3, Qa=2, fragments={0: [0, 1, 2], 10: [3, 4, 5]})
        assert await lac_of(world, explicit=explicit) == 9
        assert lac_floor(world.stored.value) == 9


@both
async def test_lac_of_a_closed_ledger_asks_nobody(explicit: bool) -> None:
    async with ledger_world(1) as world:
        await world.create(E=1, Qw=1, Qa=1)
        await world.put(0)
        await world.close(0)
        await world.cluster.kill(0)
        world.stored = await world.metadata()
        assert await lac_of(world, explicit=explicit) == 0


@both
async def test_damaged_last_entry_says_nothing(explicit: bool) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=3)
        await world.put(0)
        await world.put(1, on=[0])
        for position in (1, 2):
            await world.put_at(world.ensemble[position], 1, damaged=True)
        assert await lac_of(world, explicit=explicit) == 0  # With Qa 3, one answer covers.


async def test_view_goes_back_neither_in_lac_nor_in_metadata() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        view = LedgerView(Versioned(world.stored.value, 3))
        view.on_lac(5)
        view.on_lac(2)
        assert view.lac == 5
        older = dataclasses.replace(world.stored.value, ack_quorum=1)
        view.on_metadata(Versioned(older, 2))
        view.on_metadata(Versioned(older, 3))
        assert view.metadata == world.stored.value
        await world.close(8)
        end = (await world.metadata()).value
        view.on_metadata(Versioned(end, 4))
        assert view.lac == 8
        view.on_lac(100)
        assert view.lac == EntryId(8)


async def test_smaller_explicit_lac_that_comes_late_does_not_replace_the_greater_one() -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(7):
            await world.put(entry_id, lac=-1)
        for lac in (3, 5, 4):
            await world.put_explicit_lac(lac, on=[0, 1, 2])
        assert await lac_of(world, explicit=True) == 5
        for bookie in range(3):
            await world.cluster.kill(bookie)
            await world.cluster.restart(bookie)
        await until(lambda: lac_is_known(world, 5), "the journals have it too")


async def lac_is_known(world: World, lac: int) -> bool:
    try:
        return await lac_of(world, explicit=True) == lac
    except LacUnknownError:  # The connections are not back yet.
        return False


# --- bookies that have too many requests ------------------------------------------------------------------------------


def make_busy(world: World, monkeypatch: pytest.MonkeyPatch, positions: Sequence[int], times: int) -> list[BookieId]:
    """Lets each of these bookies refuse `times` requests. Returns the bookies that refused, one for each time."""
    busy = [world.ensemble[position] for position in positions]
    refused: list[BookieId] = []

    async def refuse(bookies: Bookies, bookie: BookieId, *args: Any) -> AnyResponse | Answer:
        if bookie in busy and refused.count(bookie) < times:
            refused.append(bookie)
            return ReadLacResponse(Code.ETOOMANYREQUESTS, world.keys.ledger_id)
        return await exchange(bookies, bookie, *args)

    monkeypatch.setattr("magnetar.ledger.reading.lac.exchange", refuse)
    return refused


@both
async def test_bookies_that_have_too_many_requests_for_a_moment_are_asked_for_the_lac_again(
    explicit: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(9):
            await world.put(entry_id)
        refused = make_busy(world, monkeypatch, [0, 1, 2], 2)
        assert await lac_of(world, explicit=explicit) == 7
        assert len(refused) >= 4


async def test_lac_is_known_beside_a_bookie_that_has_too_many_requests_without_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ledger_world(3) as world:
        await world.create(E=3, Qw=3, Qa=2)
        for entry_id in range(9):
            await world.put(entry_id)
        refused = make_busy(world, monkeypatch, [1], 1_000_000)
        assert await lac_of(world, explicit=True) == 7
        assert len(refused) <= 2


async def test_bookies_that_always_have_too_many_requests_are_named_when_the_lac_has_taken_its_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with ledger_world(3, dataclasses.replace(QUICK, read_timeout_ms=100)) as world:
        await world.create(E=3, Qw=3, Qa=2)
        await world.put(0)
        make_busy(world, monkeypatch, [0, 1], 1_000_000)
        with pytest.raises(LacUnknownError, match="ETOOMANYREQUESTS"):
            await lac_of(world, explicit=True)
