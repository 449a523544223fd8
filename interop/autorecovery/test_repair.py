"""The auditor of one make and the workers of the other, on bookies of both: what a lost bookie had is restored."""

from __future__ import annotations

import pytest

from interop.autorecovery.conftest import HEALED_S, MAKES, Cluster
from interop.autorecovery.makes import APACHES_NAME, OUR_NAME, OurRecovery, our_auditor
from magnetar.testing.waiting import until

_SLOW = ("recovery.ledgers_at_once=1", "recovery.copy_bytes_per_s=100_000")  # So that Apache's worker gets its share.


@pytest.mark.parametrize("lost", MAKES)
async def test_our_worker_repairs_what_apaches_auditor_marks_for_a_lost_bookie_of(cluster: Cluster, lost: str) -> None:
    async with cluster.apaches("auditor") as apaches:
        await cluster.wait_auditor(APACHES_NAME)
        gone = await cluster.lose_one(lost)
        await cluster.healing.wait_marked(seconds=HEALED_S)
        marks = await apaches.marks()
        assert set(marks) <= set(cluster.ids)
        assert {bookie for replicas in marks.values() for bookie in replicas} == {gone}
        async with cluster.ours() as ours:
            await cluster.expect_healed(gone)
            assert ours.repaired() >= len(marks)
            assert await cluster.auditor() == APACHES_NAME


@pytest.mark.parametrize("lost", MAKES)
async def test_apaches_worker_repairs_what_our_auditor_marks_for_a_lost_bookie_of(cluster: Cluster, lost: str) -> None:
    async with our_auditor(cluster.zookeeper):
        await cluster.wait_auditor(OUR_NAME)
        gone = await cluster.lose_one(lost)
        await cluster.healing.wait_marked(seconds=HEALED_S)
        async with cluster.apaches("worker") as apaches:
            await cluster.expect_healed(gone)
            assert await apaches.marks() == {}


@pytest.mark.parametrize("auditor", MAKES)
async def test_workers_of_both_makes_repair_together_under_the_auditor_of(cluster: Cluster, auditor: str) -> None:
    if auditor == "apache":
        async with cluster.apaches("both"):
            await cluster.wait_auditor(APACHES_NAME)
            async with cluster.ours(*_SLOW) as ours:
                await _repair_together(cluster, "magnetar", ours, APACHES_NAME)
    else:
        async with cluster.ours(*_SLOW) as ours:
            await cluster.wait_auditor(OUR_NAME)
            async with cluster.apaches("both"):
                await _repair_together(cluster, "apache", ours, OUR_NAME)


async def _repair_together(cluster: Cluster, lost: str, ours: OurRecovery, auditor: str) -> None:
    gone = await cluster.lose_one(lost)
    affected = len(await cluster.healing.naming(cluster.ids, [gone]))
    await cluster.expect_healed(gone)
    repaired = ours.repaired()
    assert 0 < repaired < affected, f"our worker repaired {repaired} of {affected} ledgers"
    assert await cluster.auditor() == auditor


async def test_our_worker_leaves_a_ledger_alone_that_apaches_has_locked(cluster: Cluster) -> None:
    async with our_auditor(cluster.zookeeper):
        await cluster.wait_auditor(OUR_NAME)
        gone = await cluster.lose_one("magnetar")
        await cluster.healing.wait_marked(seconds=HEALED_S)
        (locked,) = (await cluster.healing.naming(cluster.ids, [gone]))[:1]
        async with cluster.apaches("auditor") as apaches:
            await apaches.lock(locked)
            async with cluster.ours():
                await _wait_all_but(cluster, locked)
                await apaches.unlock(locked)
                await cluster.expect_healed(gone)


async def test_apaches_worker_leaves_a_ledger_alone_that_ours_has_locked(cluster: Cluster) -> None:
    async with our_auditor(cluster.zookeeper):
        await cluster.wait_auditor(OUR_NAME)
        gone = await cluster.lose_one("apache")
        await cluster.healing.wait_marked(seconds=HEALED_S)
        (locked,) = (await cluster.healing.naming(cluster.ids, [gone]))[:1]
        marks = cluster.healing.marks
        assert await marks.lock(locked, OUR_NAME)
        async with cluster.apaches("worker"):
            await _wait_all_but(cluster, locked)
            await marks.unlock(locked)
            await cluster.expect_healed(gone)


async def _wait_all_but(cluster: Cluster, locked: int) -> None:
    async def is_so() -> bool:
        return await cluster.healing.marked() == [locked]

    await until(is_so, f"only ledger {locked}, which is locked, is still marked", seconds=HEALED_S)


async def test_an_auditor_of_ours_follows_one_of_apaches_that_died_and_the_other_way_round(cluster: Cluster) -> None:
    async with cluster.apaches("both") as first:
        await cluster.wait_auditor(APACHES_NAME)
        async with cluster.ours() as ours:
            first.close()
            await cluster.wait_auditor(OUR_NAME)
            gone = await cluster.lose_one("magnetar")
            await cluster.expect_healed(gone)
            cluster.mixed.refill()
            async with cluster.apaches("both"):
                ours.kill()
                await cluster.wait_auditor(APACHES_NAME)
                also_gone = await cluster.lose_one("apache")
                await cluster.expect_healed(gone, also_gone)
