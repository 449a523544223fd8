"""Batch jobs with an id: published once for each target, and known again whatever version has stored their record."""

from __future__ import annotations

import logging

import pytest

from magnetar.errors import JobAlreadyCommittedError
from magnetar.staging.intents import OwnerNode
from magnetar.staging.records import JobIdentity
from magnetar.staging.register import owner_path
from tests.unit.admin.admin_world import AdminWorld
from tests.unit.staging.staging_world import OTHER, TOPIC, StagingWorld, staging_world

pytestmark = pytest.mark.virtual_time

JOB = "spark-job/a-query/7"
RECORD_OF_A_JOB_WITHOUT_TARGET = (
    b'{"last_done":0,"decided":0,"sweeps":0,"by":"0123456789abcdef0123456789abcdef","job":true}'
)
"""As the versions before targets stored it."""


async def save(world: StagingWorld, job: JobIdentity, text: str) -> bool:
    """As a batch writer does. Returns whether anything was written."""
    sink = world.sink()
    if await sink.is_job_done(job):
        return False
    staged = await world.stage({job.target: [text]}, owner=job.owner)
    await sink.commit(job.owner, 0, [staged], is_job=True)
    return True


async def test_one_job_id_with_two_targets_is_written_to_both_and_to_each_once() -> None:
    async with staging_world() as world:
        for text in ("first run", "second run"):
            for target in (TOPIC, OTHER):
                await save(world, JobIdentity(JOB, target), text)
        assert await world.texts(TOPIC) == ["first run"]
        assert await world.texts(OTHER) == ["first run"]


async def test_a_job_that_is_skipped_is_logged_with_its_target_and_counted(caplog: pytest.LogCaptureFixture) -> None:
    job = JobIdentity(JOB, TOPIC)
    async with staging_world() as world:
        assert await save(world, job, "a")
        with caplog.at_level(logging.WARNING, "magnetar.staging.sink"):
            assert not await save(world, job, "b")
        assert world.broker_world.broker.staged.skips == 1
    assert [record.getMessage() for record in caplog.records] == [
        f"job {JOB} was committed before: nothing is written to {TOPIC}"
    ]


async def test_a_repeated_epoch_of_a_stream_and_a_job_that_lost_are_counted_as_skips() -> None:
    job = JobIdentity(JOB, TOPIC)
    async with staging_world() as world:
        for text in ("a", "b"):
            await world.sink().commit("spark/query", 0, [await world.stage({TOPIC: [text]}, owner="spark/query")])
        assert world.broker_world.broker.staged.skips == 1
        late = [await world.stage({TOPIC: ["late"]}, owner=job.owner)]
        await save(world, job, "c")
        with pytest.raises(JobAlreadyCommittedError):
            await world.sink().commit(job.owner, 0, late, is_job=True)
        assert world.broker_world.broker.staged.skips == 2
        assert await world.texts() == ["a", "c"]


async def test_a_commit_that_is_repeated_by_its_own_driver_is_no_skip() -> None:
    async with staging_world() as world:
        staged = [await world.stage({TOPIC: ["a"]}, owner="spark/query")]
        for _ in range(2):
            await world.sink().commit("spark/query", 0, staged)
        assert world.broker_world.broker.staged.skips == 0


async def test_a_job_that_was_stored_without_a_target_counts_for_every_target(caplog: pytest.LogCaptureFixture) -> None:
    async with staging_world() as world:
        await world.store.create(owner_path(JOB), RECORD_OF_A_JOB_WITHOUT_TARGET, make_parents=True)
        with caplog.at_level(logging.WARNING, "magnetar.staging.sink"):
            for target in (TOPIC, OTHER):
                assert not await save(world, JobIdentity(JOB, target), "again")
    assert all("noted no target" in record.getMessage() for record in caplog.records)
    assert len(caplog.records) == 2


async def test_a_job_that_was_decided_without_a_target_and_left_behind_is_published_and_not_repeated() -> None:
    async with staging_world() as world:
        publisher = world.publisher

        class Away:
            async def publish(self, topic: str, owner: str, epoch: int) -> None:
                raise JobAlreadyCommittedError("stands for any end of the process")

            forget, note_skip = publisher.forget, publisher.note_skip

        with pytest.raises(JobAlreadyCommittedError):
            await world.sink(Away()).commit(JOB, 0, [await world.stage({TOPIC: ["before"]}, owner=JOB)], is_job=True)
        assert not await save(world, JobIdentity(JOB, TOPIC), "after")
        assert await world.texts() == ["before"]
        assert await OwnerNode(world.store, JobIdentity(JOB, TOPIC).owner).find() is None


async def test_a_run_that_wrote_nothing_is_counted_by_any_broker_over_http() -> None:
    async with staging_world() as world:
        rest = AdminWorld(world.broker_world)
        answer = await rest.call("POST", "/admin/v2/magnetar/staged/skips/0?owner=spark-job%2Fx")
        assert (answer.status, world.broker_world.broker.staged.skips) == (204, 1)
        assert (await rest.call("POST", "/admin/v2/magnetar/staged/skips/0")).status == 400


def test_the_identity_of_a_job_is_the_same_in_every_version_from_now_on() -> None:
    assert JobIdentity("spark-job/x", "persistent://public/default/fa").owner == "spark-job/x@0a12d27c5dfc41f3"
    assert JobIdentity("spark-job/x", "").owner == "spark-job/x@e3b0c44298fc1c14"
