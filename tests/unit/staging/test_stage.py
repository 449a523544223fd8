"""What a task stages: durable, closed, invisible; and gone if it gives up."""

from __future__ import annotations

import pytest

from magnetar.errors import MagnetarError, MetadataUnavailableError, StagingError, TopicNotFoundError
from magnetar.staging.intents import OwnerNode
from magnetar.staging.register import Register
from tests.unit.staging.staging_world import OTHER, OWNER, TOPIC, entry, staging_world

pytestmark = pytest.mark.virtual_time


async def test_what_is_staged_is_closed_registered_and_in_no_topic() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["a", "b"], OTHER: ["c"]}, epoch=3, partition=1)
        assert [(part.topic, part.entries, part.rows) for part in staged.parts] == [(TOPIC, 2, 2), (OTHER, 1, 1)]
        for part in staged.parts:
            metadata = await world.ledgers.metadata(part.ledger_id)
            assert metadata.is_closed
            assert metadata.length == part.size_bytes
            assert metadata.custom_metadata["epoch"] == b"3"
            noted = await Register(world.store, OWNER).read(part.ledger_id)
            assert noted is not None
            assert noted.epoch == 3
        with pytest.raises(TopicNotFoundError):
            await world.broker_world.topic(TOPIC)


async def test_more_than_a_writer_takes_at_once_is_staged_all_the_same() -> None:
    async with staging_world() as world:
        staged = await world.stage({TOPIC: ["x" * 2_000 for _ in range(3_000)]})
        assert staged.parts[0].entries == 3_000


async def test_a_task_that_gives_up_leaves_nothing() -> None:
    async with staging_world() as world:
        stager = world.stager()
        await stager.add(TOPIC, entry("a", 0), 1)
        await stager.give_up()
        assert await Register(world.store, OWNER).ledger_ids() == []
        with pytest.raises(StagingError):
            await stager.add(TOPIC, entry("b", 1), 1)
        with pytest.raises(StagingError):
            await stager.finish()


async def test_giving_up_after_finishing_touches_nothing() -> None:
    async with staging_world() as world:
        stager = world.stager()
        await stager.add(TOPIC, entry("a", 0), 1)
        staged = await stager.finish()
        await stager.give_up()
        await world.sink().commit(OWNER, 0, [staged])
        assert await world.texts() == ["a"]


async def test_a_ledger_that_was_fenced_meanwhile_fails_its_task() -> None:
    async with staging_world() as world:
        stager = world.stager()
        await stager.add(TOPIC, entry("a", 0), 1)
        (ledger_id,) = await Register(world.store, OWNER).ledger_ids()
        await world.ledgers.recover(ledger_id)
        await stager.add(TOPIC, entry("b", 1), 1)
        with pytest.raises(MagnetarError, match=str(ledger_id)):
            await stager.finish()
        await stager.give_up()


async def test_an_attempt_that_fails_when_its_epoch_is_decided_drops_all_that_it_gets_and_hands_over_nothing() -> None:
    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        stager = world.stager(attempt=1)
        await stager.add(TOPIC, entry("again", 0), 1)
        await stager.add(OTHER, entry("too", 1), 1)
        for ledger_id in await Register(world.store, OWNER).ledger_ids():
            await world.ledgers.recover(ledger_id)
        for number in range(2, 10_000):  # More than a writer takes without an answer: some `add` hears of the failure.
            await stager.add(TOPIC, entry("more", number), 1)
        assert await Register(world.store, OWNER).ledger_ids() == []
        assert (await stager.finish()).parts == ()


async def test_an_attempt_that_fails_and_cannot_ask_whether_that_matters_says_both(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def away(self: OwnerNode) -> None:
        raise MetadataUnavailableError("away")

    async with staging_world() as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        stager = world.stager(attempt=1)
        await stager.add(TOPIC, entry("again", 0), 1)
        (ledger_id,) = await Register(world.store, OWNER).ledger_ids()
        await world.ledgers.recover(ledger_id)
        await stager.add(TOPIC, entry("more", 1), 1)
        monkeypatch.setattr(OwnerNode, "find", away)
        with pytest.raises(MagnetarError, match=str(ledger_id)) as caught:
            await stager.finish()
        assert caught.value.__notes__ == ["It is unknown whether its epoch is decided already: away"]
        await stager.give_up()


async def test_a_lost_answer_of_the_register_is_no_failure() -> None:
    async with staging_world() as world:
        world.store.lost = ["create", "create"]
        await Register(world.store, OWNER).note(77, 0)
        assert await Register(world.store, OWNER).ledger_ids() == [77]
