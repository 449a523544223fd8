"""The cluster in this process does to its bookies what its docstring says."""

from __future__ import annotations

from pathlib import Path

from magnetar.testing.cluster import BookieCluster
from magnetar.testing.waiting import until
from workloads.bookie_load import BookieLoad


async def write(cluster: BookieCluster, ledger_id: int, entries: int) -> BookieLoad:
    load = await BookieLoad.connect("127.0.0.1", cluster.nodes[0].port, ledger_id)
    load.begin(entries)
    await load.wait_for(lambda load: len(load.acknowledged) >= entries)
    load.finish()
    return load


async def test_bookies_are_registered_under_ids_that_a_restart_keeps(tmp_path: Path) -> None:
    async with BookieCluster(2, directory=tmp_path) as cluster:
        ids = cluster.bookie_ids
        assert await cluster.store.children(cluster.paths.available) == sorted([*ids, "readonly"])
        await cluster.restart(1)
        assert cluster.bookie_ids == ids
        assert cluster.node(ids[1]) is cluster.nodes[1]


async def test_a_killed_bookie_is_not_registered_and_has_what_it_acknowledged_when_it_is_back() -> None:
    async with BookieCluster(1) as cluster:
        load = await write(cluster, 1, 100)
        await cluster.kill(0)
        await load.wait_for(lambda load: load.is_lost)
        assert not cluster.nodes[0].is_running
        assert await cluster.store.children(cluster.paths.available) == ["readonly"]
        await cluster.restart(0)
        again = await BookieLoad.connect("127.0.0.1", cluster.nodes[0].port, 1)
        assert await again.wrong_entries(load.acknowledged) == []
        await again.aclose()


async def test_a_hung_bookie_answers_nothing_until_it_wakes() -> None:
    async with BookieCluster(1) as cluster:
        cluster.hang(0)
        cluster.hang(0)  # Twice is as once.
        load = await BookieLoad.connect("127.0.0.1", cluster.nodes[0].port, 1)
        load.begin(10)
        await until(lambda: cluster.nodes[0]._held, "the adds have come and are not taken")
        assert load.acknowledged == []
        load.finish()
        cluster.wake(0)
        await load.wait_for(lambda load: len(load.acknowledged) == 10)
        await load.aclose()


async def test_a_hung_bookie_can_be_stopped_and_killed() -> None:
    async with BookieCluster(2) as cluster:
        for index in (0, 1):
            cluster.hang(index)
        await cluster.stop(0)
        await cluster.kill(1)
        assert not any(node.is_running for node in cluster.nodes)


async def test_another_session_sees_the_same_metadata() -> None:
    async with BookieCluster(0) as cluster, cluster.session() as store:
        await store.create("/here")
        assert await cluster.store.get("/here") is not None
