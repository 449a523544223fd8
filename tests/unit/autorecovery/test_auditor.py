"""The auditor marks what has to be repaired, and nothing else."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.autorecovery.auditor import Auditor
from magnetar.autorecovery.status import RecoveryStatus
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.recovery_nodes import BookieSet, PeriodicCheck, request_audit
from magnetar.metadata.bookkeeper.underreplication import mark_path
from magnetar.testing.waiting import until
from tests.unit.autorecovery.healing import clinic

pytestmark = pytest.mark.virtual_time


async def test_most_bookies_that_vanish_at_once_are_waited_for_until_an_operator_decides() -> None:
    async with clinic(5) as world:
        ledgers = [await world.write(5, (2, 2, 1)) for _ in range(4)]
        world.cluster.server.cut(world.sessions[0])  # type: ignore[arg-type] - it must see them vanish together
        for bookie in world.cluster.bookie_ids[:3]:
            await world.cluster.kill(bookie)
        world.cluster.server.mend(world.sessions[0])  # type: ignore[arg-type]
        await until(lambda: world.is_auditor("holding"), "the auditor waits")
        await asyncio.sleep(10)
        assert await world.marked() == []
        await request_audit(world.store, world.nodes, 0)
        await until(world.marked, "ledgers are marked")
        for bookie in world.cluster.bookie_ids[:3]:
            await world.cluster.restart(bookie)
        await world.wait_healed(ledgers)
        for ledger in ledgers:
            assert await world.missing_replicas(ledger) == []


async def test_bookie_that_is_back_within_the_delay_costs_nothing() -> None:
    async with clinic(5, lost_bookie_delay_s=60) as world:
        ledger = await world.write(5)
        before = await world.metadata(ledger)
        lost = world.member(before)
        await until(lambda: world.services[0].is_auditor, "it is the auditor")
        await world.cluster.kill(lost)
        await asyncio.sleep(50)
        await world.cluster.restart(lost)
        await asyncio.sleep(60)
        assert await world.marked() == []
        assert await world.metadata(ledger) == before
        await world.cluster.kill(lost)
        await asyncio.sleep(50)
        assert await world.metadata(ledger) == before
        await world.wait_healed([ledger], without=lost)


async def test_loss_that_no_auditor_saw_is_found_by_the_next_one() -> None:
    async with clinic(5, helpers=0) as world:
        ledger = await world.write(5)
        lost = world.member(await world.metadata(ledger))
        await world.cluster.kill(lost)
        await world.add_recovery()
        await world.wait_healed([ledger], without=lost)
        assert await BookieSet(world.store, world.nodes.lost).read() == [lost]


async def test_lost_bookie_that_is_back_is_forgotten() -> None:
    async with clinic(5) as world:
        ledger = await world.write(5)
        lost = world.member(await world.metadata(ledger))
        await world.cluster.kill(lost)
        await world.wait_healed([ledger], without=lost)
        known = BookieSet(world.store, world.nodes.lost)
        await until(known.read, "it is noted as lost")
        await world.cluster.restart(lost)

        async def is_forgotten() -> bool:
            return await known.read() == []

        await until(is_forgotten, "it is forgotten")


async def test_periodic_check_finds_a_missing_first_entry_and_workers_repair_it() -> None:
    async with clinic(4, helpers=0) as world:
        ledger = await world.write_with_gaps(10, [(0, 0)])
        assert len(await world.missing_replicas(ledger)) == 1
        await world.add_recovery(ledger_check_interval_s=30)
        await asyncio.sleep(30)

        async def is_whole() -> bool:
            return await world.missing_replicas(ledger) == []

        await until(is_whole, "the entry is back", seconds=120)
        node = await world.store.get(PeriodicCheck.ALL_LEDGERS.path(world.nodes))
        assert node is not None
        assert PeriodicCheck.ALL_LEDGERS.decode(node.value) is not None


async def test_scrub_finds_any_missing_entry_at_its_bounded_rate() -> None:
    async with clinic(4, helpers=0) as world:
        ledger = await world.write_with_gaps(30, [(16, 1)])
        await world.add_recovery(scrub_bytes_per_s=100_000)
        await asyncio.sleep(60)  # The pause before its first round.

        async def is_whole() -> bool:
            return await world.missing_replicas(ledger) == []

        await until(is_whole, "the entry is back", seconds=300)


async def test_idle_process_asks_the_metadata_nothing() -> None:
    async with clinic(4) as world:
        await until(lambda: world.is_auditor("watching"), "it is the auditor")
        await asyncio.sleep(5)
        requests = 0
        carry = world.sessions[0]._submit

        def counted(request: object) -> object:
            nonlocal requests
            requests += 1
            return carry(request)  # type: ignore[arg-type]

        world.sessions[0]._submit = counted  # type: ignore[method-assign, assignment]
        await asyncio.sleep(120)
        assert requests == 0


async def test_audit_that_is_asked_for_during_an_audit_begins_after_it(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Auditor._index
    async with clinic(4, helpers=0) as world:

        async def asked(auditor: Auditor, *arguments: Any) -> Any:
            if not auditor.audits:
                auditor.request_audit(force=True)
            return await read(auditor, *arguments)

        monkeypatch.setattr(Auditor, "_index", asked)
        service = await world.add_recovery()
        await until(lambda: service.auditor is not None and service.auditor.audits == 2, "there is another audit")


async def test_bookie_that_is_lost_while_the_ledgers_are_read_is_audited_from_the_beginning(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Auditor._index
    async with clinic(5, helpers=0) as world:
        ledger = await world.write(10)
        lost = world.member(await world.metadata(ledger))

        async def then_lost(auditor: Auditor, *arguments: Any) -> Any:
            found = await read(auditor, *arguments)
            if not auditor.audits:
                await world.cluster.kill(lost)
                await until(lambda: not auditor._roster.is_serving(lost), "the loss is seen")
            return found

        monkeypatch.setattr(Auditor, "_index", then_lost)
        await world.add_recovery()
        await world.wait_healed([ledger], without=lost)


async def test_bookie_that_is_back_and_lost_again_during_an_audit_is_audited_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    read = Auditor._index
    ledgers = []
    async with clinic(4) as world:
        first = await world.write(5)
        lost = world.member(await world.metadata(first))
        await world.cluster.kill(lost)
        await world.wait_healed([first], without=lost)
        known = BookieSet(world.store, world.nodes.lost)
        await until(known.read, "it is noted as lost")

        async def then_back_and_lost(auditor: Auditor, *arguments: Any) -> Any:
            found = await read(auditor, *arguments)
            if not ledgers:
                await world.cluster.restart(lost)
                candidates = world.client.context.bookies.candidates
                await until(lambda: auditor._roster.is_serving(lost), "it is back")
                await until(lambda: lost in candidates().writable, "the client may use it")
                ledgers.append(await world.write(10, (4, 2, 2)))
                await world.cluster.kill(lost)
                await until(lambda: not auditor._roster.is_serving(lost), "the loss is seen")
                await world.cluster.add_bookie()
            return found

        monkeypatch.setattr(Auditor, "_index", then_back_and_lost)
        await request_audit(world.store, world.nodes, 0)
        await until(lambda: bool(ledgers), "the ledgers were read")
        await world.wait_healed(ledgers, without=lost)


async def test_lost_bookie_is_told_as_away_until_its_ledgers_are_marked(monkeypatch: pytest.MonkeyPatch) -> None:
    read = Auditor._index
    told = []
    async with clinic(5) as world:
        status = RecoveryStatus(world.store, world.cluster.paths)
        ledger = await world.write(10)
        lost = world.member(await world.metadata(ledger))
        await until(lambda: world.is_auditor("watching"), "it is the auditor")

        async def noted(auditor: Auditor, *arguments: Any) -> Any:
            told.append((await status.read())["away"])
            return await read(auditor, *arguments)

        monkeypatch.setattr(Auditor, "_index", noted)
        await world.cluster.kill(lost)
        await world.wait_healed([ledger], without=lost)
        assert told == [[lost]]
        assert (await status.read())["away"] == []


async def test_bookies_of_which_only_their_cookies_are_left_do_not_count_as_away() -> None:
    async with clinic(4, helpers=0) as world:
        ledger = await world.write(5)
        lost = world.member(await world.metadata(ledger))
        for number in range(8):
            await world.store.create(world.cluster.paths.cookie(BookieId(f"old-{number}:3181")), b"")
        await world.add_recovery()
        await until(lambda: world.is_auditor("watching"), "it is the auditor")
        await world.cluster.kill(lost)
        await world.wait_healed([ledger], without=lost)
        assert await BookieSet(world.store, world.nodes.lost).read() == [lost]


async def test_mark_that_cannot_be_read_holds_no_other_ledger() -> None:
    async with clinic(5) as world:
        broken, ledger = [await world.write(5, (4, 2, 2)) for _ in range(2)]
        await until(lambda: world.is_auditor("watching"), "it is the auditor")
        await world.store.create(mark_path(world.cluster.paths, broken), b"replica {", make_parents=True)
        lost = world.member(await world.metadata(ledger))
        await world.cluster.kill(lost)

        async def is_left() -> bool:
            return not await world.names(ledger, lost)

        await until(is_left, "the other ledger is repaired")
        await until(lambda: world.is_auditor("watching"), "the auditor goes on")
        assert world.services[0].restarts == 0
