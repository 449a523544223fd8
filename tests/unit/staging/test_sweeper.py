"""The sweeper: finishes what was left, deletes what is not needed, and never what an intent may still name."""

from __future__ import annotations

import pytest

from magnetar.errors import ServiceNotReadyError, StagedLedgerGoneError
from magnetar.staging.register import SINKS, Register, intent_path, owner_path
from magnetar.staging.sweeper import SweepReport, sweep
from tests.unit.staging.staging_world import OWNER, TOPIC, StagingWorld, entry, staging_world

pytestmark = pytest.mark.virtual_time

TTL_MS = 3_600_000


class Away:
    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        raise ServiceNotReadyError("away")

    async def forget(self, topic: str, owner: str) -> None:
        raise ServiceNotReadyError("away")

    async def note_skip(self, owner: str, epoch: int) -> None:
        raise ServiceNotReadyError("away")


async def swept(world: StagingWorld, *, later_ms: int = 0, ttl_ms: int = TTL_MS, **more: int) -> SweepReport:
    now_ms = world.broker_world.cluster.runtime.entropy.wall_ms() + later_ms
    return await sweep(world.store, world.ledgers, now_ms, ttl_ms, sink=world.sink(), **more)


async def leave_behind(world: StagingWorld, text: str, epoch: int = 0) -> None:
    with pytest.raises(ServiceNotReadyError):
        await world.sink(Away(), patience_s=0.0).commit(OWNER, epoch, [await world.stage({TOPIC: [text]}, epoch=epoch)])


async def test_there_is_nothing_to_sweep_in_a_new_cluster() -> None:
    async with staging_world() as world:
        assert await swept(world) == SweepReport()


async def test_an_intent_whose_driver_is_gone_is_published_after_a_while() -> None:
    async with staging_world() as world:
        await leave_behind(world, "a")
        assert (await swept(world)).finished == []
        report = await swept(world, later_ms=61_000)
        assert report.finished == [(OWNER, 0)]
        assert await world.texts() == ["a"]
        assert await Register(world.store, OWNER).ledger_ids() == []


class ProcessEndsError(Exception):
    """Stands for kill -9."""


async def ends() -> None:
    raise ProcessEndsError


async def test_an_intent_that_a_driver_left_after_its_epoch_was_done_goes_with_its_ledgers() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})
        world.store.before["delete"] = ends  # The intent would go now.
        with pytest.raises(ProcessEndsError):
            await world.sink().commit(OWNER, 0, [staged], is_job=True)
        assert await world.sink().last_done(OWNER) == 0
        assert (await swept(world)).deleted == []
        report = await swept(world, later_ms=61_000)
        assert report.finished == [(OWNER, 0)]
        assert await world.store.get(intent_path(OWNER, 0)) is None
        assert await Register(world.store, OWNER).ledger_ids() == []
        assert not await world.ledger_exists(staged.parts[0].ledger_id)
        assert await world.texts() == ["a"]


async def test_losers_of_an_epoch_that_is_done_are_deleted_and_others_spared() -> None:
    async with staging_world() as world:
        loser = await world.stage({TOPIC: ["loser"]})
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]}, attempt=1)])
        running = await world.stage({TOPIC: ["b"]}, epoch=1)
        report = await swept(world)
        assert report.deleted == [loser.parts[0].ledger_id]
        assert not report.failures
        await world.sink().commit(OWNER, 1, [running])
        assert await world.texts() == ["a", "b"]


async def test_what_an_intent_names_is_never_deleted_however_old_it_is() -> None:
    async with staging_world() as world:
        await leave_behind(world, "a")
        report = await swept(world, later_ms=2 * TTL_MS, finish_after_ms=10 * TTL_MS)
        assert report.deleted == []
        await world.sink().recover(OWNER)
        assert await world.texts() == ["a"]


async def test_what_is_older_than_any_task_is_deleted_and_its_driver_hears_it() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})
        assert (await swept(world, later_ms=2 * TTL_MS)).deleted == [staged.parts[0].ledger_id]
        with pytest.raises(StagedLedgerGoneError):
            await world.sink().commit(OWNER, 0, [staged])


async def test_a_task_that_is_still_writing_when_it_is_swept_fails() -> None:
    async with staging_world() as world:
        stager = world.stager()
        await stager.add(TOPIC, entry("a", 0), 1)
        await swept(world, later_ms=2 * TTL_MS)
        with pytest.raises(Exception, match="ledger"):
            await stager.finish()
        await stager.give_up()


async def test_a_task_that_repeats_an_epoch_ends_well_though_its_ledgers_are_swept_because_the_epoch_is_done() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        stager = world.stager(attempt=1)
        await stager.add(TOPIC, entry("again", 0), 1)
        assert len((await swept(world)).deleted) == 1
        await stager.add(TOPIC, entry("and again", 1), 1)
        staged = await stager.finish()
        assert staged.parts == ()
        await world.sink().commit(OWNER, 0, [staged])
        assert await world.texts() == ["a"]
        assert await Register(world.store, OWNER).ledger_ids() == []


async def test_a_task_that_repeats_an_epoch_which_the_sweeper_itself_finishes_ends_well() -> None:
    async with staging_world() as world:
        await leave_behind(world, "a")
        stager = world.stager(attempt=1)
        await stager.add(TOPIC, entry("again", 0), 1)
        report = await swept(world, later_ms=61_000)
        assert report.finished == [(OWNER, 0)]
        assert len(report.deleted) == 1
        staged = await stager.finish()
        assert staged.parts == ()
        await world.sink().commit(OWNER, 0, [staged])
        assert await world.texts() == ["a"]


async def test_a_sweeper_between_verifying_and_deciding_makes_the_driver_look_again() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})

        async def sweep_now() -> None:
            await swept(world, later_ms=2 * TTL_MS)

        world.store.before["transact"] = sweep_now
        with pytest.raises(StagedLedgerGoneError):
            await world.sink().commit(OWNER, 0, [staged])
        assert await world.sink().last_done(OWNER) == -1


async def test_a_driver_that_decides_between_two_steps_of_a_sweeper_is_spared() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})

        async def commit_now() -> None:
            with pytest.raises(ServiceNotReadyError):
                await world.sink(Away(), patience_s=0.0).commit(OWNER, 0, [staged])

        world.store.before["put"] = commit_now  # Right before the sweeper writes what is doomed.
        report = await swept(world, later_ms=2 * TTL_MS, finish_after_ms=10 * TTL_MS)
        assert report.deleted == []
        await world.sink().recover(OWNER)
        assert await world.texts() == ["a"]


async def test_what_is_doomed_is_not_committed_though_it_is_still_there() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})
        outcomes: list[type[Exception]] = []

        async def commit_now() -> None:
            with pytest.raises(StagedLedgerGoneError, match="sweeper") as caught:
                await world.sink().commit(OWNER, 0, [staged])
            outcomes.append(caught.type)

        async def wait_for_the_last_look() -> None:
            world.store.before["children"] = commit_now

        world.store.before["put"] = wait_for_the_last_look
        report = await swept(world, later_ms=2 * TTL_MS)
        assert outcomes == [StagedLedgerGoneError]
        assert report.deleted == [staged.parts[0].ledger_id]


async def test_a_register_without_a_ledger_stays_while_its_task_may_be_about_to_make_it() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        register = Register(world.store, OWNER)
        await register.note(4_711, 0)
        await swept(world)
        assert await register.ledger_ids() == [4_711]
        await swept(world, later_ms=2 * TTL_MS)
        assert await register.ledger_ids() == []


async def test_an_owner_who_never_decided_is_forgotten_and_one_who_did_is_not() -> None:
    async with staging_world() as world:
        await world.stage({TOPIC: ["x"]}, owner="never")
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        for _ in range(2):
            report = await swept(world, later_ms=2 * TTL_MS)
        assert report.forgotten == ["never"]
        assert await world.store.get(owner_path(OWNER)) is not None
        assert len(await world.store.children(SINKS)) == 1


async def test_a_passing_owner_that_a_sweeper_had_to_finish_is_forgotten_later() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})
        with pytest.raises(ServiceNotReadyError):
            await world.sink(Away(), patience_s=0.0).commit(OWNER, 0, [staged], is_job=True, is_passing=True)
        await swept(world, later_ms=61_000)
        assert await world.texts() == ["a"]
        await world.sink().commit(OWNER, 0, [staged], is_job=True, is_passing=True)  # Its driver, who was only slow.
        assert await world.texts() == ["a"]
        assert await world.store.get(owner_path(OWNER)) is None


async def test_one_damaged_owner_does_not_hold_up_the_others() -> None:
    async with staging_world() as world:
        await world.store.create(owner_path("damaged"), b"nonsense", make_parents=True)
        await leave_behind(world, "a")
        report = await swept(world, later_ms=61_000)
        assert len(report.failures) == 1
        assert report.finished == [(OWNER, 0)]
