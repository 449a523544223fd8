"""`bookkeeper shell` where auditor and workers are ours, and `magnetar recovery` where they are Apache's."""

from __future__ import annotations

import asyncio
import re
import subprocess

from interop.autorecovery.conftest import HEALED_S, Cluster
from interop.autorecovery.makes import APACHES_NAME, OUR_NAME, our_auditor
from magnetar.ids import LedgerId
from magnetar.testing.processes.servers import MAGNETAR
from magnetar.testing.waiting import until


async def test_the_shell_lists_the_ledgers_that_our_auditor_marked_and_their_missing_replicas(cluster: Cluster) -> None:
    async with our_auditor(cluster.zookeeper):
        await cluster.wait_auditor(OUR_NAME)
        gone = await cluster.lose_one("magnetar")
        wanted = await cluster.healing.naming(cluster.ids, [gone])

        async def are_marked() -> bool:
            return await cluster.healing.marked() == wanted

        await until(are_marked, f"these ledgers are marked: {wanted}", seconds=HEALED_S)
        assert await cluster.healing.marks.lock(LedgerId(wanted[0]), OUR_NAME)
        said = await cluster.shell("listunderreplicated", "-pmr", "-prw")
        await cluster.healing.marks.unlock(LedgerId(wanted[0]))
        assert sorted(map(int, re.findall(r"\{ledgerId=(\d+)\}", said))) == wanted, said
        assert re.findall(r"\{missingReplica=([^}]+)\}", said) == [gone] * len(wanted), said
        assert re.findall(r"\{replicationWorkerId=([^}]+)\}", said) == [OUR_NAME], said
        async with cluster.ours():
            await cluster.expect_healed(gone)


async def test_the_shell_names_our_auditor(cluster: Cluster) -> None:
    async with cluster.ours():
        await cluster.wait_auditor(OUR_NAME)
        said = await cluster.shell("whoisauditor")
        assert f"{{auditor={OUR_NAME}}}" in said, said


async def test_the_shell_switches_our_recovery_off_and_on(cluster: Cluster) -> None:
    async with cluster.ours():
        await cluster.wait_auditor(OUR_NAME)
        await cluster.shell("autorecovery", "-disable")
        said = await cluster.shell("autorecovery")
        assert "{status=disabled}" in said, said
        gone = await cluster.lose_one("magnetar")
        await cluster.wait_away(gone)
        assert await cluster.healing.marked() == []
        await cluster.shell("autorecovery", "-enable")
        await cluster.expect_healed(gone)


async def test_the_shell_sets_the_delay_and_asks_for_an_audit(cluster: Cluster) -> None:
    async with cluster.ours():
        await cluster.wait_auditor(OUR_NAME)
        await cluster.shell("lostbookierecoverydelay", "-set", "3600")
        said = await cluster.shell("lostbookierecoverydelay", "-get")
        assert "{delay=3600}" in said, said
        gone = await cluster.lose_one("magnetar")
        await cluster.wait_away(gone)
        assert await cluster.healing.marked() == []
        await cluster.shell("triggeraudit")
        await cluster.expect_healed(gone)
        await cluster.shell("lostbookierecoverydelay", "-set", "1")  # It refuses 0.


async def test_the_shell_recovers_a_lost_bookie_while_our_recovery_is_disabled(cluster: Cluster) -> None:
    async with cluster.ours():
        await cluster.wait_auditor(OUR_NAME)
        await cluster.shell("autorecovery", "-disable")
        gone = await cluster.lose_one("magnetar")
        await cluster.wait_away(gone)
        await cluster.shell("recover", "-force", gone)
        await cluster.expect_healed(gone)
        await cluster.shell("autorecovery", "-enable")
        await cluster.expect_healed(gone)


async def test_the_shell_decommissions_a_bookie_that_was_stopped_by_our_auditor_and_workers(cluster: Cluster) -> None:
    async with cluster.ours():
        await cluster.wait_auditor(OUR_NAME)
        gone = await cluster.lose_one("magnetar")
        await cluster.wait_away(gone)
        said = await cluster.shell("decommissionbookie", "-bookieid", gone)
        assert "Cookie of the decommissioned bookie: is deleted successfully" in said, said
        await cluster.expect_healed(gone)


async def test_our_commands_look_at_apaches_auditor_and_switch_it_off_and_on(cluster: Cluster) -> None:
    async with cluster.apaches("both"):
        await cluster.wait_auditor(APACHES_NAME)
        assert (await _magnetar(cluster, "whoisauditor")).strip() == APACHES_NAME
        await _magnetar(cluster, "disable")
        gone = await cluster.lose_one("magnetar")
        await cluster.wait_away(gone)
        assert await cluster.healing.marked() == []
        await _magnetar(cluster, "enable")
        await cluster.expect_healed(gone)


async def _magnetar(cluster: Cluster, *words: str) -> str:
    command = [*MAGNETAR, "recovery", *words, "--metadata", f"zk://{cluster.zookeeper}"]
    done = await asyncio.to_thread(subprocess.run, command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return str(done.stdout)
