"""The operator's word: each broker hears it in its own time, and loses a topic before it gets it back."""

from __future__ import annotations

import asyncio
from random import Random

from magnetar.broker.front_end import PULSAR
from magnetar.broker.ownership import BrokerAddress, Lost, Successor, TopicSet
from magnetar.names import TopicName
from magnetar.sim.topics.cluster import Board
from magnetar.sim.world import World

TOPIC = "persistent://public/default/t"
NAME = TopicName.parse(TOPIC)
ADDRESS = BrokerAddress("broker:0", "http://broker:0", {PULSAR: "pulsar://broker:6650"})


def recording(lost: list[TopicSet]) -> Lost:
    def on_lost(topics: TopicSet, _successor: Successor | None) -> asyncio.Future[None]:
        lost.append(topics)
        done: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        done.set_result(None)
        return done

    return on_lost


def test_old_owner_goes_on_until_it_is_told() -> None:
    async def scenario() -> None:
        board = Board(Random(1))
        board.owners[TOPIC] = "one"
        one, two = board.join("one", ADDRESS), board.join("two", ADDRESS)
        lost: list[TopicSet] = []
        one.listen(recording(lost))
        board.move(TOPIC, "two", tell_old_after_s=10.0)
        await asyncio.sleep(1.0)
        assert one.owns(NAME)
        assert two.owns(NAME)
        assert (await two.owner_of(NAME)).is_here
        await asyncio.sleep(10.0)
        assert not one.owns(NAME)
        assert lost == [{NAME}]
        assert (await one.owner_of(NAME)).address.url_for(PULSAR) == "pulsar://two:6650"

    with World("ownership") as world:
        world.run(scenario())


def test_topic_that_comes_back_was_lost_in_between() -> None:
    async def scenario() -> None:
        board = Board(Random(1))
        board.owners[TOPIC] = "one"
        one = board.join("one", ADDRESS)
        board.join("two", ADDRESS)
        lost: list[TopicSet] = []
        stop = one.listen(recording(lost))
        board.move(TOPIC, "two", tell_old_after_s=10.0)
        board.move(TOPIC, "one", tell_old_after_s=0.0)
        await asyncio.sleep(1.0)
        assert one.owns(NAME)
        assert lost == [{NAME}]
        await asyncio.sleep(10.0)
        assert one.owns(NAME), "news of an earlier move that come late are none"
        stop()
        board.move(TOPIC, "two", tell_old_after_s=0.0)
        await asyncio.sleep(1.0)
        assert lost == [{NAME}]

    with World("ownership") as world:
        world.run(scenario())
