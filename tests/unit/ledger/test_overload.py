"""Writers whose bookies have too many requests, for a moment or for long."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.ids import BookieId
from magnetar.ledger.writing.repair import Repair
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from tests.unit.ledger.writing import WriterWorld, bodies, ensembles, writer_world

pytestmark = pytest.mark.virtual_time

UNLIMITED = 60_000


def overload(world: WriterWorld, *bookies: str) -> None:
    """As full caches do for longer than a bookie lets adds wait. Without names: all of them."""
    for bookie in bookies or world.cluster.bookie_ids:
        gate = world.cluster.node(bookie).running.adds.cache_gate
        gate.is_shut = gate.refuses = True


def relieve(world: WriterWorld) -> None:
    for node in world.cluster.nodes:
        node.running.adds.cache_gate.open()


def refusals(world: WriterWorld, bookie: str) -> int:
    return world.cluster.node(bookie).running.adds.refused.get(Code.ETOOMANYREQUESTS, 0)


async def until_refused(world: WriterWorld, times: int, *bookies: str) -> None:
    await until(lambda: all(refusals(world, bookie) >= times for bookie in bookies), "the adds were refused")


class Changes:
    """When a writer changed its ensemble, and to whom."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.times: list[float] = []
        self.chosen: list[list[BookieId]] = []
        write = Repair._write

        async def noted(repair: Repair, chosen: dict[int, object]) -> None:
            self.times.append(asyncio.get_running_loop().time())
            self.chosen.append([channel.bookie_id for channel in chosen.values()])  # type: ignore[attr-defined]
            await write(repair, chosen)  # type: ignore[arg-type]

        monkeypatch.setattr(Repair, "_write", noted)


@pytest.fixture
def changes(monkeypatch: pytest.MonkeyPatch) -> Changes:
    return Changes(monkeypatch)


async def test_writer_outlasts_an_overload_of_all_bookies_without_changing_its_ensemble() -> None:
    async with (
        writer_world(6, slow_bookie_wait_ms=UNLIMITED) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"entry-0")
        overload(world)
        adds = [writer.enqueue(body) for body in bodies(1, 5)]
        await until_refused(world, 15, *ensembles(writer)[0][1])  # Each entry three times.
        relieve(world)
        assert await asyncio.gather(*adds) == [1, 2, 3, 4, 5]
        await writer.close()
        assert world.ledgers.updates == 1  # Its end.
        assert await world.payloads(writer) == bodies(0, 6)


async def test_bookie_that_was_overloaded_gets_what_it_refused() -> None:
    async with (
        writer_world(4, slow_bookie_wait_ms=UNLIMITED) as world,
        await world.client.create(ack_quorum=3) as writer,
    ):
        busy = ensembles(writer)[0][1][1]
        overload(world, busy)
        add = writer.enqueue(b"entry-0")
        await until_refused(world, 2, busy)
        relieve(world)
        assert await add == 0
        assert busy in await world.holders(writer, 0)


async def test_writer_waits_for_an_overloaded_bookie_that_the_ack_quorum_needs_and_then_replaces_it() -> None:
    async with (
        writer_world(4, slow_bookie_wait_ms=300) as world,
        await world.client.create(ack_quorum=3) as writer,
    ):
        busy = ensembles(writer)[0][1][1]
        overload(world, busy)
        add = writer.enqueue(b"entry-0")
        await until(lambda: not writer.has_room, "the writer waits")
        assert await add == 0
        assert busy not in ensembles(writer)[-1][1]
        assert refusals(world, busy) > 1
        assert writer.statistics().ensemble_changes == 1
        relieve(world)


async def test_bookie_that_refuses_all_that_others_confirm_is_replaced() -> None:
    """Though it owes nothing at the end of every pause, which are all shorter than the writer's patience."""
    async with (
        writer_world(4, slow_bookie_wait_ms=1_200) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        busy = ensembles(writer)[0][1][1]
        overload(world, busy)

        async def is_replaced() -> bool:
            await writer.add(b"another")
            return busy not in ensembles(writer)[-1][1]

        await until(is_replaced, "the bookie is replaced")
        assert refusals(world, busy) > 1
        relieve(world)


async def test_writer_goes_on_when_others_confirmed_all_that_a_bookie_refused() -> None:
    async with (
        writer_world(4, slow_bookie_wait_ms=UNLIMITED) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"entry-0")
        busy = ensembles(writer)[0][1][1]
        world.cluster.hang(busy)
        await writer.add(b"entry-1")
        overload(world, busy)
        world.cluster.wake(busy)
        await until_refused(world, 1, busy)
        relieve(world)
        await until(lambda: writer.has_room, "the writer waits no more")
        assert await writer.add(b"entry-2") == 2
        assert writer.statistics().ensemble_changes == 0


async def test_changes_come_slower_and_slower_while_every_newcomer_refuses(changes: Changes) -> None:
    async with (
        writer_world(6, slow_bookie_wait_ms=1) as world,
        await world.client.create(ack_quorum=2) as writer,
    ):
        await writer.add(b"entry-0")
        overload(world)
        add = writer.enqueue(b"entry-1")
        await until(lambda: len(changes.times) >= 4, "the bookies were replaced again and again")
        relieve(world)
        assert await add == 1
        first, *_, third, fourth = changes.times[:4]
        assert fourth - third >= 0.1
        assert fourth - first >= 0.2


async def test_bookie_that_failed_lately_is_not_chosen_while_others_are_there(changes: Changes) -> None:
    async with (
        writer_world(5, slow_bookie_wait_ms=1) as world,
        await world.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        await writer.add(b"entry-0")
        overload(world)
        add = writer.enqueue(b"entry-1")
        await until(lambda: len(changes.chosen) >= 5, "everybody was tried")
        relieve(world)
        assert await add == 1
        tried = [ensembles(writer)[0][1][0], *(bookie for [bookie] in changes.chosen[:4])]
        assert sorted(tried) == sorted(world.cluster.bookie_ids)
