"""Ledgers get their replicas back after bookies are lost, whatever else happens meanwhile."""

from __future__ import annotations

import asyncio
import dataclasses
from typing import Any

import pytest

from magnetar.autorecovery.copy import CopySink
from magnetar.autorecovery.drain import Decommission, Drain
from magnetar.autorecovery.marking import Marker
from magnetar.autorecovery.repair import LedgerRepair, Outcome
from magnetar.autorecovery.service import AutoRecovery
from magnetar.errors import LedgerFencedError, MetadataUnavailableError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.metadata import stored_keys
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.metadata.bookkeeper.recovery_nodes import MarkState, set_disabled
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.frames import Flag
from magnetar.wire.bookkeeper.hot_path import AddEncoder
from tests.unit.autorecovery.healing import Clinic, clinic, payload

pytestmark = pytest.mark.virtual_time


async def assert_whole(world: Clinic, *ledgers: int) -> None:
    for ledger in ledgers:
        assert await world.missing_replicas(ledger) == []


async def lose_one(world: Clinic, ledger: int) -> BookieId:
    lost = world.member(await world.metadata(ledger))
    await world.cluster.kill(lost)
    return lost


class Held:
    """Stops every repair between its copies and its change of the metadata."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.reached = asyncio.Event()
        self.go = asyncio.Event()
        commit = LedgerRepair._commit

        async def held(repair: LedgerRepair, *arguments: Any) -> Any:
            self.reached.set()
            await self.go.wait()
            return await commit(repair, *arguments)

        monkeypatch.setattr(LedgerRepair, "_commit", held)


# --- a bookie is lost -------------------------------------------------------------------------------------------------


async def test_ledgers_of_a_lost_bookie_get_all_their_replicas_back() -> None:
    async with clinic(5) as world:
        ledgers = [await world.write(20) for _ in range(6)]
        lost = await lose_one(world, ledgers[0])
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


@pytest.mark.parametrize("quorums", [(2, 2, 1), (3, 3, 2), (5, 3, 2), (4, 2, 2)])
async def test_every_shape_of_ledger_is_repaired(quorums: tuple[int, int, int]) -> None:
    async with clinic(7) as world:
        ledgers = [await world.write(entries, quorums) for entries in (1, 2, 17)]
        lost = await lose_one(world, ledgers[2])
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


async def test_several_workers_share_the_ledgers_of_a_lost_bookie() -> None:
    async with clinic(5, helpers=3, ledgers_at_once=1) as world:
        ledgers = [await world.write(30) for _ in range(12)]
        lost = await lose_one(world, ledgers[0])
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)
        assert sum(service.is_auditor for service in world.services) == 1
        assert sum(service.counters.ledgers_repaired > 0 for service in world.services) > 1


async def test_two_bookies_lost_in_a_row_leave_every_replica_whole() -> None:
    async with clinic(6, helpers=2) as world:
        ledgers = [await world.write(15) for _ in range(8)]
        for _ in range(2):
            lost = await lose_one(world, ledgers[0])
            await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


async def test_copies_have_the_same_bytes_as_the_entries_they_replace() -> None:
    async with clinic(4) as world:
        ledger = await world.write(9)
        before = await world.bodies(ledger)
        lost = await lose_one(world, ledger)
        await world.wait_healed([ledger], without=lost)
        after = await world.bodies(ledger)
        assert after == before


async def test_bookie_that_comes_back_during_the_repair_does_no_harm(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(5, helpers=2) as world:
        ledgers = [await world.write(20) for _ in range(4)]
        lost = await lose_one(world, ledgers[0])
        await held.reached.wait()
        await world.cluster.restart(lost)
        held.go.set()
        await world.wait_healed(ledgers)
        await assert_whole(world, *ledgers)


async def test_worker_killed_between_copy_and_metadata_leaves_the_ledger_to_another(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = Held(monkeypatch)
    async with clinic(5, helpers=1) as world:
        ledgers = [await world.write(20) for _ in range(4)]
        lost = await lose_one(world, ledgers[0])
        await held.reached.wait()
        await world.sessions[0].aclose()  # With it go its locks; its service ends.
        await world.services[0].aclose()
        held.go.set()
        await world.add_recovery()
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


async def test_session_lost_during_a_repair_makes_its_worker_commit_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(5, helpers=2) as world:
        ledgers = [await world.write(20) for _ in range(6)]
        lost = await lose_one(world, ledgers[0])
        await held.reached.wait()
        for session in world.sessions:
            await world.cluster.server.expire(session)  # type: ignore[arg-type]
        held.go.set()
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


async def test_metadata_that_is_cut_off_during_a_repair_only_delays_it(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(5) as world:
        ledgers = [await world.write(20) for _ in range(3)]
        lost = await lose_one(world, ledgers[0])
        await held.reached.wait()
        world.cluster.server.cut(world.sessions[0])  # type: ignore[arg-type]
        held.go.set()
        await asyncio.sleep(0.5)
        world.cluster.server.mend(world.sessions[0])  # type: ignore[arg-type]
        await world.wait_healed(ledgers, without=lost)
        await assert_whole(world, *ledgers)


async def test_target_that_dies_during_the_copy_is_replaced_by_another() -> None:
    async with clinic(5) as world:
        ledgers = [await world.write(40) for _ in range(3)]
        metadata = await world.metadata(ledgers[0])
        lost = await lose_one(world, ledgers[0])
        spare = next(b for b in world.cluster.bookie_ids if b not in metadata.fragments[0].ensemble)
        world.cluster.hang(spare)  # Registered, and takes nothing.
        await world.wait_healed(ledgers, without=lost)
        world.cluster.wake(spare)
        await assert_whole(world, *ledgers)


async def test_ledger_with_more_entries_than_one_client_may_ask_for_at_once_is_repaired() -> None:
    async with clinic(4, verify_all_entries=True, chunk_bytes_max=2**20) as world:
        world.cluster.config = dataclasses.replace(
            world.cluster.config, ledger=dataclasses.replace(world.cluster.config.ledger, requests_in_flight_max=20)
        )
        await world.services[0].aclose()
        await world.add_recovery()
        ledger = await world.write(120)
        lost = await lose_one(world, ledger)
        await world.wait_healed([ledger], without=lost)
        await assert_whole(world, ledger)


# --- ledgers that end in a special way --------------------------------------------------------------------------------


async def test_deleted_ledger_loses_its_mark() -> None:
    async with clinic(4) as world:
        ledger = await world.write(5)
        await world.client.delete(ledger)
        await world.marks.mark(ledger, [world.cluster.bookie_ids[0]], 1)
        await world.wait_healed([])
        assert await world.notes.read(ledger) is None


async def test_empty_closed_ledger_loses_its_mark_and_keeps_its_metadata() -> None:
    async with clinic(4) as world:
        ledger = await world.write(0)
        before = await world.metadata(ledger)
        lost = await lose_one(world, ledger)
        await world.marks.mark(ledger, [lost], 1)
        await world.wait_healed([])
        assert await world.metadata(ledger) == before


async def test_only_copy_of_entries_is_waited_for_and_copied_when_its_bookie_is_back() -> None:
    async with clinic(4) as world:
        ledger = await world.write(6, (2, 1, 1))
        lost = await lose_one(world, ledger)
        await until(lambda: world.is_state(ledger, MarkState.UNREPAIRABLE), "it is unrepairable")
        assert (await world.note(ledger)).entries == "0,2,4"
        assert sum(service.counters.unrepairable for service in world.services) == 1
        await world.cluster.restart(lost)
        await world.wait_healed([ledger])
        await assert_whole(world, ledger)


async def test_unrepairable_ledger_alerts_once_and_its_other_fragments_are_repaired() -> None:
    async with clinic(6, helpers=2) as world:
        ledger = await world.write(6)
        ensemble = (await world.metadata(ledger)).fragments[0].ensemble
        await set_disabled(world.store, world.nodes, True)
        for bookie in ensemble[:2]:  # Entry 0 and 3 are on these two alone.
            await world.cluster.kill(bookie)
        await set_disabled(world.store, world.nodes, False)
        await until(lambda: world.is_state(ledger, MarkState.UNREPAIRABLE), "it is unrepairable")
        assert (await world.note(ledger)).entries == "0,3"
        await world.cluster.kill(next(b for b in world.cluster.bookie_ids if b not in ensemble))
        await asyncio.sleep(5)
        assert sum(service.counters.unrepairable for service in world.services) == 1
        await world.cluster.restart(ensemble[0])
        await world.wait_healed([ledger])
        await assert_whole(world, ledger)


async def test_repair_waits_for_a_bookie_when_there_are_too_few() -> None:
    async with clinic(3) as world:
        ledger = await world.write(9)
        lost = await lose_one(world, ledger)
        await until(lambda: world.is_state(ledger, MarkState.WAITING), "it waits")
        assert "bookies" in (await world.note(ledger)).why
        await world.cluster.add_bookie()
        await world.wait_healed([ledger], without=lost)
        await assert_whole(world, ledger)


# --- marks that others made -------------------------------------------------------------------------------------------


async def test_bookie_named_by_a_mark_gets_the_one_entry_that_it_lacks() -> None:
    async with clinic(3) as world:
        ledger = await world.write_with_gaps(30, [(16, 1)])
        before = await world.metadata(ledger)
        bookie = world.member(before, 1)
        assert [entry for entry, _, _ in await world.missing_replicas(ledger)] == [16]
        await world.marks.mark(ledger, [bookie], 1)
        await world.wait_healed([ledger])
        await assert_whole(world, ledger)
        assert await world.metadata(ledger) == before


async def test_mark_that_is_renewed_during_the_repair_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(5) as world:
        ledger = await world.write(10)
        lost = await lose_one(world, ledger)
        await held.reached.wait()
        other = next(b for b in world.cluster.bookie_ids if b != lost)
        await world.marks.mark(ledger, [other], 2)
        repaired = world.services[0].counters.ledgers_repaired
        held.go.set()
        await world.wait_healed([ledger], without=lost)
        assert world.services[0].counters.ledgers_repaired == repaired + 1  # By the second look only.
        await assert_whole(world, ledger)


async def test_locked_ledger_is_left_to_its_worker() -> None:
    async with clinic(4) as world:
        ledger = await world.write(5)
        assert await world.marks.lock(ledger, "an Apache worker")
        await world.marks.mark(ledger, [world.cluster.bookie_ids[0]], 1)
        await asyncio.sleep(5)
        assert await world.marked() == [ledger]
        await world.marks.unlock(ledger)
        await world.wait_healed([ledger])


# --- open ledgers -----------------------------------------------------------------------------------------------------


async def test_writer_that_replaces_the_bookie_within_the_grace_time_keeps_its_ledger() -> None:
    async with clinic(5, open_ledger_grace_ms=5_000) as world:
        writer = await world.open_writer(10)
        ledger = writer.ledger_id
        lost = await lose_one(world, ledger)
        await until(lambda: world.is_state(ledger, MarkState.WAITING), "the worker waits for the writer")
        for entry in range(10, 20):
            await writer.add(payload(ledger, entry))
        await world.wait_healed([ledger], without=lost)
        assert (await world.metadata(ledger)).state is LedgerState.OPEN
        for entry in range(20, 25):
            await writer.add(payload(ledger, entry))
        await writer.close()
        await assert_whole(world, ledger)


async def test_idle_open_ledger_is_fenced_and_closed_after_the_grace_time_and_loses_nothing() -> None:
    async with clinic(5) as world:
        writer = await world.open_writer(10)
        ledger = writer.ledger_id
        lost = await lose_one(world, ledger)
        await world.wait_healed([ledger], without=lost)
        metadata = await world.metadata(ledger)
        assert metadata.state is LedgerState.CLOSED
        assert metadata.last_entry_id == 9
        await assert_whole(world, ledger)
        with pytest.raises(LedgerFencedError):
            await writer.add(b"too late")


async def test_mark_on_a_ledger_that_is_written_disturbs_nothing() -> None:
    async with clinic(5, helpers=2) as world:
        writer = await world.open_writer(5)
        ledger = writer.ledger_id
        await world.marks.mark(ledger, [world.member(await world.metadata(ledger))], 1)
        for entry in range(5, 60):
            await writer.add(payload(ledger, entry))
        await world.wait_healed([ledger])
        await writer.close()
        await assert_whole(world, ledger)


class RawWriter:
    """Writes to each bookie of an open ledger what a test wants, by the protocol of a writer."""

    def __init__(self, world: Clinic, writer: LedgerWriter) -> None:
        metadata = writer.metadata
        keys = stored_keys(metadata)
        assert keys is not None
        self.ledger = writer.ledger_id
        self.ensemble = metadata.fragments[0].ensemble
        self._header = AddEncoder(writer.ledger_id, keys.master_key, keys.digest, Flag.NONE).header
        self._sinks = [CopySink(bookie, writer.ledger_id, world.client.context) for bookie in self.ensemble]

    async def open(self) -> None:
        for sink in self._sinks:
            await sink.open()

    async def add(self, entry: int, *positions: int) -> None:
        body = payload(self.ledger, entry)
        for position in positions:
            length = sum(len(payload(self.ledger, each)) for each in range(entry + 1))
            await self._sinks[position].add({entry: [self._header(entry, entry - 1, length, body), body]})

    def close(self) -> None:
        for sink in self._sinks:
            sink.close()


async def test_writer_one_of_whose_bookies_is_always_late_keeps_its_ledger() -> None:
    async with clinic(4, open_ledger_grace_ms=1_000) as world:
        raw = RawWriter(world, await world.open_writer(0, (3, 3, 2)))
        await raw.open()
        for entry in range(100):
            await raw.add(entry, 0, 1)
            if entry >= 5:
                await raw.add(entry - 5, 2)
            if entry == 10:
                await world.marks.mark(raw.ledger, [raw.ensemble[2]], 1)
            await asyncio.sleep(0.1)
        assert (await world.metadata(raw.ledger)).state is LedgerState.OPEN
        for entry in range(95, 100):
            await raw.add(entry, 2)
        raw.close()
        await world.wait_healed([raw.ledger])
        assert (await world.metadata(raw.ledger)).state is LedgerState.OPEN


async def test_open_ledger_that_lacks_an_old_entry_is_closed_and_repaired() -> None:
    async with clinic(4, open_ledger_grace_ms=1_000) as world:
        raw = RawWriter(world, await world.open_writer(0, (3, 3, 2)))
        await raw.open()
        for entry in range(10):
            await raw.add(entry, *([0, 1] if entry == 3 else [0, 1, 2]))
        raw.close()
        await world.marks.mark(raw.ledger, [raw.ensemble[2]], 1)
        await world.wait_healed([raw.ledger])
        assert (await world.metadata(raw.ledger)).state is LedgerState.CLOSED
        await assert_whole(world, raw.ledger)


# --- operators --------------------------------------------------------------------------------------------------------


async def test_nothing_is_repaired_while_auto_recovery_is_disabled() -> None:
    async with clinic(5) as world:
        ledger = await world.write(10)
        await set_disabled(world.store, world.nodes, True)
        await until(lambda: world.is_auditor("disabled"), "the auditor has noticed")
        lost = await lose_one(world, ledger)
        await asyncio.sleep(10)
        assert await world.marked() == []
        await set_disabled(world.store, world.nodes, False)
        await world.wait_healed([ledger], without=lost)
        await assert_whole(world, ledger)


def drain_of(world: Clinic, bookie: BookieId) -> Drain:
    marker = Marker(world.marks, world.notes, world.cluster.runtime.entropy.wall_ms)
    return Drain(world.store, world.cluster.paths, world.client.context.ledgers, marker, bookie)


async def decommission(world: Clinic, bookie: BookieId) -> None:
    await Decommission(world.store, world.cluster.paths, bookie).begin(1)
    drain = drain_of(world, bookie)
    await drain.begin("the bookie is being decommissioned")

    async def is_done() -> bool:
        return (await drain.look()).is_done

    await until(is_done, "the bookie is drained", seconds=120)


async def test_bookie_is_decommissioned_while_it_runs_and_no_copy_is_ever_missing() -> None:
    async with clinic(5) as world:
        ledgers = [await world.write(20) for _ in range(6)]
        bookie = world.member(await world.metadata(ledgers[0]))
        await decommission(world, bookie)
        assert not any([await world.names(ledger, bookie) for ledger in ledgers])
        await assert_whole(world, *ledgers)
        nodes = Decommission(world.store, world.cluster.paths, bookie)
        assert not await nodes.finish()
        await world.cluster.kill(bookie)
        assert await nodes.finish()
        assert not await nodes.is_known()


async def test_bookie_is_decommissioned_while_another_one_dies(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(6, helpers=2) as world:
        ledgers = [await world.write(20) for _ in range(8)]
        metadata = await world.metadata(ledgers[0])
        leaving, dying = metadata.fragments[0].ensemble[:2]
        work = asyncio.ensure_future(decommission(world, leaving))
        await held.reached.wait()
        await world.cluster.kill(dying)
        held.go.set()
        await work
        await world.wait_healed(ledgers, without=dying)
        assert not any([await world.names(ledger, leaving) for ledger in ledgers])
        await assert_whole(world, *ledgers)


async def test_failed_part_of_the_service_begins_again(monkeypatch: pytest.MonkeyPatch) -> None:
    async with clinic(5) as world:
        ledger = await world.write(10)
        service: AutoRecovery = world.services[0]
        await until(lambda: service.is_auditor, "it is the auditor")

        async def broken(*_: object) -> None:
            monkeypatch.undo()
            raise RuntimeError("a bug")

        monkeypatch.setattr("magnetar.autorecovery.auditor.Auditor._look", broken)
        lost = await lose_one(world, ledger)
        await world.wait_healed([ledger], without=lost)
        assert service.restarts == 1
        await assert_whole(world, ledger)


# --- workers that meet errors -----------------------------------------------------------------------------------------


async def test_unrepairable_ledger_that_is_deleted_loses_its_mark_although_other_marks_come_and_go() -> None:
    async with clinic(4) as world:
        ledger = await world.write(6, (2, 1, 1))
        await lose_one(world, ledger)
        await until(lambda: world.is_state(ledger, MarkState.UNREPAIRABLE), "it is unrepairable")
        await world.client.delete(ledger)
        for missing in range(1_000, 1_008):
            await asyncio.sleep(100)
            await world.marks.mark(LedgerId(missing), [world.cluster.bookie_ids[0]], 1)
        await world.wait_healed([])
        assert await world.notes.read(ledger) is None


async def test_ledger_whose_repair_fails_unexpectedly_is_tried_again_after_a_pause(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tries = 0

    async def broken(_: LedgerRepair) -> Outcome:
        nonlocal tries
        tries += 1
        raise RuntimeError("a bug")

    async with clinic(4) as world:
        ledger = await world.write(5)
        monkeypatch.setattr(LedgerRepair, "run", broken)
        await world.marks.mark(ledger, [world.cluster.bookie_ids[0]], 1)
        await asyncio.sleep(10)
        assert 2 <= tries <= 100
        monkeypatch.undo()
        await world.wait_healed([ledger])


async def test_lock_that_was_taken_by_the_next_session_is_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    lock = UnderreplicationMarks.lock
    is_first = True
    async with clinic(4) as world:
        ledger = await world.write(5)

        async def interrupted(marks: UnderreplicationMarks, ledger_id: LedgerId, worker: str) -> bool:
            nonlocal is_first
            if is_first:
                is_first = False
                await world.cluster.server.expire(world.sessions[0])  # type: ignore[arg-type]
            return await lock(marks, ledger_id, worker)

        monkeypatch.setattr(UnderreplicationMarks, "lock", interrupted)
        await world.marks.mark(ledger, [world.cluster.bookie_ids[0]], 1)
        await world.wait_healed([ledger])
        assert not is_first


async def test_lock_is_given_back_after_a_long_outage_that_the_session_survives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    unlock = UnderreplicationMarks.unlock
    failures = 0

    async def refused(marks: UnderreplicationMarks, ledger_id: LedgerId) -> None:
        nonlocal failures
        if failures < 50:
            failures += 1
            raise MetadataUnavailableError("no quorum")
        await unlock(marks, ledger_id)

    async with clinic(4) as world:
        ledger = await world.write(5)
        monkeypatch.setattr(UnderreplicationMarks, "unlock", refused)
        await world.marks.mark(ledger, [world.cluster.bookie_ids[0]], 1)

        async def is_given_back() -> bool:
            return failures == 50 and await world.marks.holder(ledger) is None

        await until(is_given_back, "the lock is given back", seconds=600)


async def test_process_ends_soon_although_its_locks_cannot_be_given_back(monkeypatch: pytest.MonkeyPatch) -> None:
    held = Held(monkeypatch)
    async with clinic(5) as world:
        ledger = await world.write(20)
        await lose_one(world, ledger)
        await held.reached.wait()
        world.cluster.server.cut(world.sessions[0])  # type: ignore[arg-type]
        async with asyncio.timeout(10):
            await world.services[0].aclose()
        world.cluster.server.mend(world.sessions[0])  # type: ignore[arg-type]
