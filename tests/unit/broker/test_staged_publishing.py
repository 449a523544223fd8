"""The broker's side of staging: what an intent names is copied once, also after a crash, or clearly refused."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from magnetar.broker.ownership import BrokerAddress, Owner
from magnetar.broker.staged.progress import (
    LAG,
    SinkProgress,
    lag_ms_of,
    lag_to_note,
    progress_of,
    property_of,
    unfinished,
)
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.upkeep.upkeep import trim, truncate
from magnetar.client.http import HttpAnswer, HttpClient
from magnetar.config.broker import BrokerConfig
from magnetar.config.topic import TopicConfig
from magnetar.errors import (
    EpochOrderError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    StagingRecordError,
    StillPublishingError,
    TopicNotFoundError,
    TopicTerminatedError,
)
from magnetar.ledger.client import LedgerClient
from magnetar.names import TopicName
from magnetar.topic.position import Position
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from tests.unit.broker.pulsar.broker_world import batch
from tests.unit.staging.staging_world import OTHER, OWNER, TOPIC, StagingWorld, entry, staging_world

pytestmark = pytest.mark.virtual_time

NAME = TopicName.parse(TOPIC)
SMALL_LEDGERS = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1, ledger_entries_max=3, ledger_minutes_min=0)


class Nobody:
    """The epoch is decided, and its driver has ended."""

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        raise NoSuchLedgerError("gone")

    async def forget(self, topic: str, owner: str) -> None:
        raise NoSuchLedgerError("gone")


async def decide(world: StagingWorld, texts: list[str], epoch: int = 0, topic: str = TOPIC) -> None:
    staged = await world.stage({topic: texts}, epoch=epoch)
    with pytest.raises(NoSuchLedgerError):
        await world.sink(Nobody()).commit(OWNER, epoch, [staged])


def break_off() -> None:
    raise NoSuchLedgerError("the end of this try")


async def hang() -> None:
    await asyncio.Event().wait()


def stop_after(
    monkeypatch: pytest.MonkeyPatch, entries: int, end: Callable[[], Awaitable[None] | None] = break_off
) -> None:
    """The next copies end in this way after this many entries; each chunk is one entry."""
    real = LedgerClient.open_no_recovery
    read = 0

    async def opened(self: Any, *args: Any, **named: Any) -> Any:
        reader = await real(self, *args, **named)
        some = reader.read_some

        async def read_one(first: int, last: int) -> Any:
            nonlocal read
            if read == entries and (ended := end()) is not None:
                await ended
            read += 1
            return (await some(first, last))[:1]

        reader.read_some = read_one  # type: ignore[method-assign]
        return reader

    monkeypatch.setattr(LedgerClient, "open_no_recovery", opened)


async def loaded(world: StagingWorld, topic: str = TOPIC) -> PersistentTopic:
    return await world.broker_world.topic(topic)


async def publish(world: StagingWorld, epoch: int = 0, name: TopicName = NAME, **more: float) -> None:
    await world.broker_world.broker.staged.publish(name, OWNER, epoch, **more)


def test_a_mark_comes_back_as_it_was_and_damage_is_refused() -> None:
    mark = SinkProgress(7, False, Position(3, -1))
    properties = {property_of("o"): mark.to_text(), property_of("p"): SinkProgress(1, True, Position(1, 1)).to_text()}
    assert progress_of(properties, "o") == mark
    assert progress_of(properties, "q") is None
    assert unfinished({**properties, property_of("q"): "damaged"}) == {property_of("o"): Position(3, -1)}
    assert (mark.covers(6), mark.covers(7), SinkProgress(7, True, mark.start).covers(7)) == (True, False, True)
    with pytest.raises(StagingRecordError):
        SinkProgress.from_text("{}")


def test_a_lag_is_noted_twice_as_long_and_only_when_it_matters() -> None:
    assert lag_to_note({}, 5_000) is None
    assert lag_to_note({}, 60_000) == "120000"
    assert lag_to_note({LAG: "120000"}, 110_000) is None
    assert (lag_ms_of({LAG: "120000"}), lag_ms_of({LAG: "?"}), lag_ms_of({})) == (120_000, 0, 0)


@pytest.mark.parametrize("entries", [0, 1])
async def test_a_topic_knows_how_much_later_than_its_publish_time_something_staged_came(
    monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    """However much of it was copied by a try that broke off."""
    async with staging_world() as world:
        await decide(world, ["a", "b"])  # Published a millisecond after the beginning of time.
        with monkeypatch.context() as patched:
            stop_after(patched, entries)
            with pytest.raises(NoSuchLedgerError):
                await publish(world)
        before_ms = world.broker_world.broker.service.entropy.wall_ms()
        await publish(world)
        assert lag_ms_of((await loaded(world)).log.properties) >= 2 * (before_ms - 1)


async def test_a_lag_that_could_not_be_noted_is_noted_by_the_next_try(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world() as world:
        await decide(world, ["a", "b"])
        real = PersistentTopic.set_property

        async def refused(self: PersistentTopic, key: str, value: str | None) -> None:
            if key == LAG:
                raise MetadataUnavailableError("away")
            await real(self, key, value)

        with monkeypatch.context() as patched:
            patched.setattr(PersistentTopic, "set_property", refused)
            with pytest.raises(MetadataUnavailableError):
                await publish(world)
        await publish(world)
        assert lag_ms_of((await loaded(world)).log.properties)
        assert await world.texts() == ["a", "b"]


async def test_asking_again_copies_nothing_twice() -> None:
    async with staging_world() as world:
        await decide(world, ["a", "b"])
        await asyncio.gather(*(publish(world) for _ in range(5)))
        await publish(world)
        assert await world.texts() == ["a", "b"]


async def test_a_copy_that_broke_off_goes_on_where_it_was(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world() as world:
        await decide(world, [f"{number}" for number in range(6)])
        with monkeypatch.context() as patched:
            stop_after(patched, 4)
            with pytest.raises(NoSuchLedgerError):
                await publish(world)
        assert await world.texts() == ["0", "1", "2", "3"]
        await publish(world)
        assert await world.texts() == [f"{number}" for number in range(6)]


async def test_the_next_owner_goes_on_between_the_messages_of_others(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world(topic=SMALL_LEDGERS) as world:
        talker = await world.broker_world.talker()
        await talker.producer(TOPIC)
        await decide(world, [f"{number}" for number in range(7)])
        with monkeypatch.context() as patched:
            stop_after(patched, 5)
            with pytest.raises(NoSuchLedgerError):
                await publish(world)
        talker.publish(1, 0, b"theirs")
        await talker.answer(BaseCommand.SEND_RECEIPT)
        await world.broker_world.restart()
        await publish(world)
        found = await world.texts()
        assert [text for text in found if text != "theirs"] == [f"{number}" for number in range(7)]
        assert found.index("theirs") == 5


async def test_nothing_that_is_needed_to_go_on_is_trimmed(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world(topic=SMALL_LEDGERS) as world:
        await decide(world, [f"{number}" for number in range(9)])
        with monkeypatch.context() as patched:
            stop_after(patched, 8)
            with pytest.raises(NoSuchLedgerError):
                await publish(world)
        topic = await loaded(world)
        await topic.log.roll()
        assert await trim(topic) == 0  # Without a subscription all of it would be trimmed.
        await truncate(topic)
        await world.broker_world.restart()
        topic = await loaded(world)
        assert await trim(topic) == 0
        await publish(world)
        assert await world.texts() == [f"{number}" for number in range(9)]
        await topic.log.roll()
        assert await trim(topic) > 0


async def test_a_topic_that_a_sink_publishes_to_is_not_idle() -> None:
    async with staging_world(broker=BrokerConfig(inactive_topics_delete=True)) as world:
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]})])
        topic = await loaded(world)
        late_s = topic.last_used_s + 1_000_000
        assert not topic.is_idle(late_s)
        await world.broker_world.broker.staged.forget(NAME, OWNER)
        assert topic.is_idle(late_s)


async def test_a_late_request_for_an_epoch_that_is_done_is_a_success_and_does_nothing() -> None:
    async with staging_world() as world:
        for epoch in range(2):
            await world.sink().commit(OWNER, epoch, [await world.stage({TOPIC: [f"{epoch}"]}, epoch=epoch)])
        await world.broker_world.broker.staged.forget(NAME, OWNER)
        for epoch in (0, 1):
            await publish(world, epoch)
        assert await world.texts() == ["0", "1"]


async def test_what_was_never_decided_and_what_is_out_of_order_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world() as world:
        with pytest.raises(EpochOrderError, match="has not committed epoch"):
            await publish(world)
        await decide(world, ["a", "b"])
        with monkeypatch.context() as patched:
            stop_after(patched, 1)
            with pytest.raises(NoSuchLedgerError):
                await publish(world)
        with pytest.raises(EpochOrderError, match="has not committed epoch"):
            await publish(world, 1)
        with pytest.raises(EpochOrderError, match="not done"):
            await world.broker_world.broker.staged.forget(NAME, OWNER)


async def test_a_topic_that_an_intent_does_not_name_gets_nothing() -> None:
    async with staging_world() as world:
        await decide(world, ["a"])
        await publish(world, name=TopicName.parse(OTHER))
        assert await world.texts(OTHER) == []


async def test_a_terminated_topic_refuses_and_nothing_is_copied() -> None:
    async with staging_world() as world:
        await decide(world, ["a"])
        topic = await world.broker_world.broker.service.topic(NAME, create=True)
        assert isinstance(topic, PersistentTopic)
        await topic.terminate()
        with pytest.raises(TopicTerminatedError, match="terminated"):
            await publish(world)


async def test_a_topic_that_is_missing_and_not_made_by_use_is_refused_until_it_is_there() -> None:
    async with staging_world(broker=BrokerConfig(auto_create_topics=False)) as world:
        await decide(world, ["a"])
        with pytest.raises(TopicNotFoundError):
            await publish(world)
        await world.broker_world.broker.service.create_topic(NAME)
        await publish(world)
        assert await world.texts() == ["a"]


async def test_a_request_that_waits_too_long_leaves_and_the_copy_goes_on() -> None:
    async with staging_world() as world:
        await decide(world, [f"{number}" for number in range(50)])
        with pytest.raises(StillPublishingError):
            await publish(world, wait_s=0.0)
        await publish(world)
        assert len(await world.texts()) == 50


async def test_duplicates_are_not_looked_for_and_the_producers_name_stays_usable() -> None:
    async with staging_world(broker=BrokerConfig(deduplication=True)) as world:
        stager = world.stager()
        for number in (5, 3, 4):  # Not even in order.
            await stager.add(TOPIC, entry(f"{number}", number), 1)
        await world.sink().commit(OWNER, 0, [await stager.finish()])
        assert await world.texts() == ["5", "3", "4"]


async def test_a_batch_counts_as_many_messages_as_it_has() -> None:
    async with staging_world() as world:
        stager = world.stager()
        await stager.add(TOPIC, batch([b"a", b"b", b"c"]), 3)
        await world.sink().commit(OWNER, 0, [await stager.finish()])
        assert (await loaded(world)).log.next_index == 3


async def test_more_than_the_log_takes_at_once_is_copied_in_order() -> None:
    async with staging_world() as world:
        texts = [f"{number:>4000}" for number in range(500)]
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: texts})])
        assert await world.texts() == texts


async def test_a_broker_that_stops_in_the_middle_leaves_what_the_next_one_completes(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with staging_world() as world:
        await decide(world, [f"{number}" for number in range(100)])
        stop_after(monkeypatch, 50, hang)
        asked = asyncio.ensure_future(publish(world))
        topics = world.broker_world.broker.service.topics
        async with asyncio.timeout(10):
            # It looks in every turn of the loop: the copy does not take many.
            while (found := topics.find(NAME)) is None or not found.publisher.entries_in:  # noqa: ASYNC110
                await asyncio.sleep(0)
        await world.broker_world.restart()
        with pytest.raises(MagnetarError):
            await asked
        monkeypatch.undo()
        await publish(world)
        assert await world.texts() == [f"{number}" for number in range(100)]


async def test_a_broker_sweeps_what_attempts_have_left() -> None:
    async with staging_world() as world:
        loser = await world.stage({TOPIC: ["loser"]})
        await world.sink().commit(OWNER, 0, [await world.stage({TOPIC: ["a"]}, attempt=1)])
        report = await world.broker_world.broker.sweeping.sweep()
        assert (report.deleted, report.failures) == ([loser.parts[0].ledger_id], [])


async def test_a_topic_of_another_broker_is_asked_for_there(monkeypatch: pytest.MonkeyPatch) -> None:
    async with staging_world() as world:
        asked: list[tuple[object, ...]] = []

        async def look_up(_name: TopicName) -> Owner:
            return Owner(BrokerAddress("b:8080", "http://b:8080", {}), is_here=False)

        async def request(_self: HttpClient, method: str, path: str, *_args: object, **_named: object) -> HttpAnswer:
            asked.append((method, path))
            return HttpAnswer(204, {}, b"")

        monkeypatch.setattr(world.broker_world.broker.service, "look_up", look_up)
        monkeypatch.setattr(HttpClient, "request", request)
        await world.publisher.publish(TOPIC, OWNER, 3)
        await world.publisher.forget(TOPIC, OWNER)
        path = "/admin/v2/persistent/public/default/out/staged"
        assert asked == [("POST", f"{path}/3"), ("DELETE", path)]
