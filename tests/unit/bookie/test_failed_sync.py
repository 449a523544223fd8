"""A sync that failed, of whatever disk: the bookie acknowledges nothing more, however long its end takes."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.bookie.registration import Registration
from magnetar.errors import MagnetarError, SyncFailedError
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.sim.device import Fault, SimDevice
from tests.unit.bookie.node_story import PATHS
from tests.unit.bookie.one_node import on_a_node, slow, writer
from tests.unit.bookie.sim_node import SimNode

_SLOW_METADATA_S = 3.0  # Virtual, as all time here.


async def unregister_slowly(node: SimNode) -> None:
    registration = node.bookie._registration
    assert registration is not None
    remove = registration._remove_own_nodes

    async def remove_slowly() -> None:
        await asyncio.sleep(_SLOW_METADATA_S)
        await remove()

    registration._remove_own_nodes = remove_slowly  # type: ignore[method-assign]


@pytest.mark.parametrize("of_the_journal", [True, False])
def test_nothing_is_acknowledged_behind_a_failed_sync_while_the_bookie_unregisters(of_the_journal: bool) -> None:
    async def test(node: SimNode) -> None:
        await unregister_slowly(node)
        loads = [await writer(node, ledger_id) for ledger_id in (1, 2)]
        for load in loads:
            load.begin(10)
            await load.wait_for(lambda load: len(load.acknowledged) > 50)
        broken: list[SimDevice] = [node.journal] if of_the_journal else node.ledgers
        for device in broken:
            device.faults.strike_next(Fault.SYNC_ERROR)
        async with asyncio.timeout(60):
            failure = await node.bookie.wait_failed()
        if not of_the_journal:
            assert isinstance(failure, SyncFailedError)
        await asyncio.sleep(0)  # What was answered before has arrived.
        acknowledged = [len(load.acknowledged) for load in loads]
        begun = asyncio.get_running_loop().time()
        await node.stop()
        assert asyncio.get_running_loop().time() - begun >= _SLOW_METADATA_S
        assert [len(load.acknowledged) for load in loads] == acknowledged
        assert all(load.is_lost for load in loads)

    on_a_node(test, storage={"flush_interval_ms": 200})


def test_a_bookie_that_failed_takes_no_connections() -> None:
    async def test(node: SimNode) -> None:
        await unregister_slowly(node)
        slow(*node.ledgers, seconds=0.0)
        load = await writer(node, 1)
        load.begin(10)
        for device in node.ledgers:
            device.faults.strike_next(Fault.SYNC_ERROR)
        async with asyncio.timeout(60):
            await node.bookie.wait_failed()
        with pytest.raises(ConnectionRefusedError):
            await writer(node, 2)
        await node.stop()

    on_a_node(test, storage={"flush_interval_ms": 200})


def test_a_bookie_that_fails_as_it_is_registered_leaves_no_node(monkeypatch: pytest.MonkeyPatch) -> None:
    starting: list[Bookie] = []
    register, start = Bookie._register, Registration.start

    async def remembered(bookie: Bookie, paths: BookKeeperPaths) -> None:
        starting.append(bookie)
        await register(bookie, paths)

    async def failing_at_the_end(registration: Registration) -> None:
        await start(registration)
        starting[-1]._fail(MagnetarError("in the same turn"))

    async def test(node: SimNode) -> None:
        bookie_id = node.bookie.bookie_id
        await node.stop()
        monkeypatch.setattr(Bookie, "_register", remembered)
        monkeypatch.setattr(Registration, "start", failing_at_the_end)
        with pytest.raises(MagnetarError, match="in the same turn"):
            await node.start()
        assert node._store is not None
        assert await node._store.get(PATHS.registration(bookie_id, readonly=False)) is None
        await node._store.aclose()

    on_a_node(test)
