"""One process is the auditor, by BookKeeper's rule."""

from __future__ import annotations

import pytest

from magnetar.metadata.bookkeeper.recovery_nodes import elected_auditor, encode_vote, vote_number
from magnetar.metadata.store import CreateMode
from magnetar.testing.waiting import until
from tests.unit.autorecovery.healing import Clinic, clinic

pytestmark = pytest.mark.virtual_time


async def votes(world: Clinic) -> list[str]:
    return await world.store.children(world.nodes.election)


async def test_votes_are_those_of_apache_and_the_lowest_wins() -> None:
    async with clinic(1, helpers=0) as world:
        first = await world.add_recovery("first")
        await until(lambda: first.is_auditor, "the first is elected")
        second = await world.add_recovery("second")

        async def both_have_voted() -> bool:
            return len(await votes(world)) == 2

        await until(both_have_voted, "both have voted")
        names = await votes(world)
        assert [vote_number(name) for name in names] == [0, 1]
        assert names[0] == "V_0000000000"
        node = await world.store.get(f"{world.nodes.election}/{names[0]}")
        assert node is not None
        assert node.value == b'bookieId: "first"\n'
        parent = await world.store.get(world.nodes.election)
        assert parent is not None
        assert parent.value == encode_vote("first")
        assert await elected_auditor(world.store, world.nodes) == "first"
        assert not second.is_auditor


async def test_next_process_is_elected_when_the_auditor_ends() -> None:
    async with clinic(1, helpers=0) as world:
        first = await world.add_recovery("first")
        await until(lambda: first.is_auditor, "the first is elected")
        second = await world.add_recovery("second")
        await first.aclose()
        await until(lambda: second.is_auditor, "the second is elected")
        assert await votes(world) == ["V_0000000001"]


async def test_lost_session_ends_the_duty_and_the_process_votes_again() -> None:
    async with clinic(1, helpers=2) as world:
        await until(lambda: any(service.is_auditor for service in world.services), "one is elected")
        auditor = next(service for service in world.services if service.is_auditor)
        other = next(service for service in world.services if service is not auditor)
        session = world.sessions[world.services.index(auditor)]
        await world.cluster.server.expire(session)  # type: ignore[arg-type]
        await until(lambda: other.is_auditor and not auditor.is_auditor, "the other is elected")

        async def both_have_voted() -> bool:
            return len(await votes(world)) == 2

        await until(both_have_voted, "both have voted")


async def test_older_vote_of_another_kind_of_process_is_respected() -> None:
    async with clinic(1, helpers=0) as world:
        async with world.cluster.session() as apache:
            path = f"{world.nodes.election}/V_"
            value = encode_vote("apache")
            await apache.create(path, value, mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=True)
            ours = await world.add_recovery("ours")

            async def has_voted() -> bool:
                return len(await votes(world)) == 2

            await until(has_voted, "ours has voted")
            assert not ours.is_auditor
        await until(lambda: ours.is_auditor, "ours is elected after Apache's has ended")
