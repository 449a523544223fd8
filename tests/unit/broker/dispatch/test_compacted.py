"""Exclusive and Failover consumers of the compacted view, which has entries that the topic has no longer."""

from __future__ import annotations

import pytest

from magnetar.errors import InvalidCursorPositionError
from magnetar.topic.position import EARLIEST, LATEST, Position
from tests.unit.broker.dispatch.world import EXCLUSIVE, FAILOVER, Topic, World, message, settle

pytestmark = pytest.mark.virtual_time

KEPT = [1, 4, 6, 10, 11]
"""Entries that the view has. The first two are of a ledger that is trimmed away; entry 5 is the first that is left."""


class Compacted(Topic):
    """Only some entries, some of which the topic itself no longer has."""

    def __init__(self, topic: Topic, kept: list[int]) -> None:
        super().__init__(topic.ledger_entries)
        self.chain = topic.chain
        self.entries = [topic.entries[index] for index in kept]

    def _run(self, first: Position, entries_max: int) -> list:  # type: ignore[type-arg]
        return [entry for entry in self.entries if entry.position >= first][:entries_max]


def compacted_world(*, is_durable: bool = False, is_trimmed: bool = True) -> World:
    topic = Topic(ledger_entries=5)
    for index in range(12):
        topic.append(message(index))
    world = World(topic=topic, is_durable=is_durable, failover_delay_ms=0)
    world.subscription._context.compacted = Compacted(topic, KEPT)
    if is_trimmed:
        trim(world)
    return world


def trim(world: World) -> None:
    world.topic.chain.drop([1])
    world.cursor.acks.settle()


async def test_a_compacted_read_has_also_what_the_topic_has_no_longer() -> None:
    world = compacted_world()
    consumer = world.connect("c", EXCLUSIVE, read_compacted=True, start=EARLIEST)
    await settle()
    assert consumer.ids == KEPT
    consumer.ack_to(1)  # Only the compacted view has it.
    assert world.backlog == 7
    consumer.ack_to(11)
    assert world.backlog == 0


@pytest.mark.parametrize(("start", "expected"), [(1, KEPT), (2, KEPT[1:]), (4, KEPT[1:]), (5, KEPT[2:]), (6, KEPT[2:])])
async def test_a_reader_goes_on_at_its_message_also_if_only_the_compacted_view_has_it(
    start: int, expected: list[int]
) -> None:
    world = compacted_world()
    consumer = world.connect("c", EXCLUSIVE, read_compacted=True, start=world.topic.position(start))
    await settle()
    assert consumer.ids == expected


@pytest.mark.parametrize("start", [None, LATEST])
async def test_a_reader_that_begins_at_the_end_gets_nothing_of_the_compacted_view(start: Position | None) -> None:
    world = compacted_world()
    world.cursor.acknowledge_to(world.topic.last_confirmed)
    consumer = world.connect("c", EXCLUSIVE, read_compacted=True, start=start)
    await settle()
    assert consumer.ids == []


@pytest.mark.parametrize("is_durable", [False, True])
async def test_acknowledging_what_only_the_compacted_view_has_skips_nothing_of_it(is_durable: bool) -> None:
    world = compacted_world(is_durable=is_durable)
    consumer = world.connect("c", EXCLUSIVE, permits=1, read_compacted=True, start=EARLIEST)
    for number, index in enumerate(KEPT, 1):
        await settle()
        assert consumer.ids == KEPT[:number]
        consumer.ack_to(index)
        consumer.flow(1)


async def test_what_is_behind_the_last_message_of_a_compacted_read_cannot_be_acknowledged() -> None:
    world = compacted_world()
    consumer = world.connect("c", EXCLUSIVE, read_compacted=True, start=EARLIEST)
    with pytest.raises(InvalidCursorPositionError, match="look the topic up again"):
        consumer.ack_to(99)


@pytest.mark.parametrize("is_durable", [False, True])
async def test_what_only_the_compacted_view_has_is_given_again_to_who_asks(is_durable: bool) -> None:
    """The cursor does not know which parts of it were acknowledged."""

    world = compacted_world(is_durable=is_durable)
    consumer = world.connect("c", EXCLUSIVE, permits=1, read_compacted=True, start=EARLIEST)
    await settle()
    consumer.nack_all()
    consumer.clear()
    consumer.flow(100)
    await settle()
    assert consumer.ids == KEPT
    consumer.ack_to(6)
    consumer.nack_all()
    consumer.clear()
    await settle()
    assert consumer.ids == [10, 11]


@pytest.mark.parametrize(("acknowledged", "expected"), [(1, KEPT[1:]), (4, KEPT[2:])])
async def test_a_reader_under_which_the_topic_is_trimmed_gets_again_what_it_has_not_acknowledged(
    acknowledged: int, expected: list[int]
) -> None:
    world = compacted_world(is_trimmed=False)
    consumer = world.connect("c", EXCLUSIVE, permits=3, read_compacted=True, start=EARLIEST)
    await settle()
    assert consumer.ids == KEPT[:3]
    consumer.ack_to(acknowledged)
    trim(world)
    consumer.nack_all()
    consumer.clear()
    consumer.flow(100)
    await settle()
    assert consumer.ids == expected


async def test_a_subscription_does_not_begin_again_when_all_that_it_has_acknowledged_is_trimmed() -> None:
    world = compacted_world(is_durable=True, is_trimmed=False)
    consumer = world.connect("c", EXCLUSIVE, read_compacted=True)
    await settle()
    consumer.ack_to(4)
    consumer.close()
    trim(world)
    again = world.connect("c", EXCLUSIVE, read_compacted=True)
    await settle()
    assert again.ids == KEPT[2:]


async def test_a_consumer_that_is_active_again_gets_all_that_the_other_had_of_the_compacted_view() -> None:
    world = compacted_world(is_durable=True)
    first = world.connect("a", FAILOVER, priority=1, permits=1, read_compacted=True)
    await settle()
    assert first.ids == KEPT[:1]
    second = world.connect("b", FAILOVER, priority=0, permits=0, read_compacted=True)
    second.close()
    first.clear()
    first.flow(100)
    await settle()
    assert first.ids == KEPT
