"""Committing an epoch: once, by any driver and with any number of tries, and in order."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

from magnetar.broker.staged.progress import has_progress
from magnetar.errors import (
    EpochOrderError,
    JobAlreadyCommittedError,
    MagnetarError,
    NoNodeError,
    ServiceNotReadyError,
    StagedLedgerGoneError,
    StagingError,
    TopicTerminatedError,
)
from magnetar.staging import intents as intents_module
from magnetar.staging.register import SINKS, Register, intent_path, owner_path
from tests.unit.staging.staging_world import OTHER, OWNER, TOPIC, StagingWorld, staging_world

pytestmark = pytest.mark.virtual_time


class Failing:
    """A publisher that fails for one topic a number of times, then passes the rest on."""

    def __init__(self, world: StagingWorld, topic: str, times: int, error: MagnetarError) -> None:
        self.asked: list[tuple[str, int]] = []
        self._world = world
        self._topic = topic
        self._left = times
        self._error = error

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        self.asked.append((topic, epoch))
        if topic == self._topic and self._left:
            self._left -= 1
            raise self._error
        await self._world.publisher.publish(topic, owner, epoch)

    async def forget(self, topic: str, owner: str) -> None:
        await self._world.publisher.forget(topic, owner)

    async def note_skip(self, owner: str, epoch: int) -> None:
        await self._world.publisher.note_skip(owner, epoch)


async def test_an_epoch_is_in_its_topics_by_partition_and_nothing_staged_is_left() -> None:
    async with staging_world() as world:
        second = await world.stage({TOPIC: ["c"], OTHER: ["d"]}, partition=1)
        first = await world.stage({TOPIC: ["a", "b"]}, partition=0)
        await world.sink().commit(OWNER, 0, [second, first])
        assert await world.texts(TOPIC) == ["a", "b", "c"]
        assert await world.texts(OTHER) == ["d"]
        assert await world.sink().last_done(OWNER) == 0
        assert await world.store.get(intent_path(OWNER, 0)) is None
        assert await Register(world.store, OWNER).ledger_ids() == []
        for part in (*first.parts, *second.parts):
            assert not await world.ledger_exists(part.ledger_id)


async def test_a_batch_that_is_run_again_publishes_nothing_new_whatever_it_holds() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a", "b"]})])
        again = [await world.stage({TOPIC: ["b"]}, partition=1), await world.stage({OTHER: ["x"]}, partition=7)]
        await world.sink().commit(OWNER, 0, again)
        assert await world.texts(TOPIC) == ["a", "b"]
        with pytest.raises(MagnetarError):
            await world.texts(OTHER)


async def test_once_it_is_decided_others_go_on_with_what_was_decided() -> None:
    async with staging_world() as world:
        broken = Failing(world, OTHER, 10_000, TopicTerminatedError("no more"))
        decided = await world.stage({TOPIC: ["a"], OTHER: ["b"]})
        with pytest.raises(TopicTerminatedError):
            await world.sink(broken).commit(OWNER, 0, [decided])
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["other rows"]}, attempt=1)])
        assert await world.texts(TOPIC) == ["a"]
        assert await world.texts(OTHER) == ["b"]


async def test_two_drivers_at_once_publish_one_of_theirs_once() -> None:
    async with staging_world() as world:
        runs = [[await world.stage({TOPIC: [f"{run}"]}, attempt=run)] for run in range(4)]
        await asyncio.gather(*(world.sink().commit(OWNER, 0, run) for run in runs))
        assert len(await world.texts()) == 1


async def test_a_lost_answer_of_the_commit_point_is_resolved_by_reading() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a"]})
        world.store.lost = ["transact"]
        await world.sink().commit(OWNER, 0, [staged], is_job=True)
        assert await world.texts() == ["a"]


async def test_an_earlier_epoch_that_was_left_behind_is_published_first() -> None:
    async with staging_world() as world:
        unavailable = Failing(world, TOPIC, 10_000, ServiceNotReadyError("away"))
        with pytest.raises(ServiceNotReadyError):
            await world.sink(unavailable, patience_s=0.0).commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        await world.sink().commit(OWNER, 1, [await world.stage({TOPIC: ["b"]}, epoch=1)])
        assert await world.texts() == ["a", "b"]
        assert await world.sink().last_done(OWNER) == 1


async def test_a_broker_that_is_away_for_a_moment_is_asked_again() -> None:
    async with staging_world() as world:
        moody = Failing(world, TOPIC, 2, ServiceNotReadyError("away"))
        await world.sink(moody).commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        assert moody.asked == [(TOPIC, 0)] * 3
        assert await world.texts() == ["a"]


async def test_an_epoch_without_rows_is_done_and_stays_empty() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({}, partition=0)])
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["late"]})])
        await world.sink().commit(OWNER, 1, [await world.stage({TOPIC: ["b"]}, epoch=1)])
        assert await world.texts() == ["b"]


async def test_an_epoch_behind_one_that_was_decided_is_refused() -> None:
    async with staging_world() as world:
        unavailable = Failing(world, TOPIC, 10_000, ServiceNotReadyError("away"))
        later = await world.stage({TOPIC: ["b"]}, epoch=5)
        with pytest.raises(ServiceNotReadyError):
            await world.sink(unavailable, patience_s=0.0).commit(OWNER, 5, [later])
        with pytest.raises(EpochOrderError, match="has decided on epoch 5"):
            await world.sink().commit(OWNER, 4, [await world.stage({TOPIC: ["a"]}, epoch=4)])


async def test_what_was_swept_or_cut_short_is_not_committed() -> None:
    async with staging_world() as world:
        gone, short = await world.stage({TOPIC: ["a"]}), await world.stage({TOPIC: ["b"]})
        await world.ledgers.delete(gone.parts[0].ledger_id)
        with pytest.raises(StagedLedgerGoneError, match="deleted"):
            await world.sink().commit(OWNER, 0, [gone])
        lie = replace(short, parts=(replace(short.parts[0], entries=2),))
        with pytest.raises(StagedLedgerGoneError, match="entry 0"):
            await world.sink().commit(OWNER, 0, [lie])
        await world.sink().commit(OWNER, 0, [short])
        assert await world.texts() == ["b"]


async def test_others_messages_and_two_of_one_partition_are_refused() -> None:
    async with staging_world() as world:
        one, two = await world.stage({TOPIC: ["a"]}), await world.stage({TOPIC: ["b"]}, attempt=1)
        with pytest.raises(StagingError, match="two attempts"):
            await world.sink().commit(OWNER, 0, [one, two])
        with pytest.raises(StagingError, match="epoch 0"):
            await world.sink().commit(OWNER, 1, [one])


async def test_of_two_jobs_with_one_id_the_second_hears_that_it_was_too_late() -> None:
    async with staging_world() as world:
        first, second = await world.stage({TOPIC: ["a"]}), await world.stage({TOPIC: ["b"]}, attempt=1)
        await world.sink().commit(OWNER, 0, [first], is_job=True)
        with pytest.raises(JobAlreadyCommittedError):
            await world.sink().commit(OWNER, 0, [second], is_job=True)
        await world.sink().commit(OWNER, 0, [first], is_job=True)  # The same run again: it has been committed.
        assert not has_progress((await world.broker_world.topic(TOPIC)).log.properties)
        assert await world.texts() == ["a"]


async def test_nothing_of_a_passing_owner_is_kept() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})], is_job=True, is_passing=True)
        assert await world.texts() == ["a"]
        assert await world.store.get(owner_path(OWNER)) is None
        assert await world.store.children(SINKS) == []
        assert not has_progress((await world.broker_world.topic(TOPIC)).log.properties)


async def test_an_intent_that_is_too_large_for_a_node_is_in_a_ledger(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(intents_module, "INTENT_BYTES_MAX", 10)
    async with staging_world() as world:
        broken = Failing(world, TOPIC, 10_000, TopicTerminatedError("no more"))
        with pytest.raises(TopicTerminatedError):
            await world.sink(broken).commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        node = await world.store.get(intent_path(OWNER, 0))
        assert node is not None
        assert node.value.startswith(b'{"ledger"')
        await world.sink().recover(OWNER)
        assert await world.texts() == ["a"]
        assert await Register(world.store, OWNER).ledger_ids() == []
        with pytest.raises(NoNodeError):
            await world.store.children(intent_path(OWNER, 0))


async def test_every_step_is_named_for_whoever_wants_to_end_the_process_there() -> None:
    async with staging_world() as world:
        points: list[str] = []
        sink = world.sink(reached=lambda point, _epoch: points.append(point))
        await sink.commit(OWNER, 0, [await world.stage({TOPIC: ["a"], OTHER: ["b"]})])
        assert points == ["tasks-done", "before-intent", "intent-reply-lost", "between-topics", "published"]
