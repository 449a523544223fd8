"""Which producers deduplication forgets, and when. Time is virtual."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.broker.publishing.dedup import Deduplication, Verdict
from magnetar.broker.publishing.producers import Producer, ProducerOptions, Publish
from magnetar.topic.position import Position
from tests.unit.broker.test_dedup_snapshots import learned

pytestmark = pytest.mark.virtual_time

SINK: Any = None
IDLE_S = 100.0


def nobody(_name: str) -> bool:
    return False


def publish_of(name: str) -> Publish:
    return (Producer(ProducerOptions(producer_id=1, name=name), SINK), 0, 0, 1, 100, 0.0)


def published(dedup: Deduplication, name: str) -> Publish:
    """On its way."""
    publish = publish_of(name)
    dedup.on_connected(name)
    assert dedup.judge(publish, counts=True) is Verdict.NEW
    return publish


def leave_before_it_is_durable(dedup: Deduplication, name: str, now_s: float) -> None:
    publish = published(dedup, name)
    dedup.on_disconnected(name, now_s)
    dedup.on_appended([publish], Position(1, 0))


def is_known(dedup: Deduplication, name: str) -> bool:
    return dedup.last_sequence_id(name) >= 0


async def test_a_producer_that_left_with_its_first_message_on_its_way_is_forgotten_when_it_was_away_for_long() -> None:
    dedup, _ = await learned(0)
    leave_before_it_is_durable(dedup, "p", 0.0)
    assert dedup.forget_idle(IDLE_S, 10.0, nobody) == 0  # Seen now.
    assert dedup.forget_idle(IDLE_S, 110.0, nobody) == 0
    assert is_known(dedup, "p")
    assert dedup.forget_idle(IDLE_S, 111.0, nobody) == 1
    assert not is_known(dedup, "p")


async def test_the_limit_holds_for_producers_that_leave_with_a_message_on_its_way() -> None:
    dedup, _ = await learned(0)
    for number in range(15):
        leave_before_it_is_durable(dedup, f"p{number}", 0.0)
    assert dedup.forget_idle(IDLE_S, 1.0, nobody) == 5
    assert sum(is_known(dedup, f"p{number}") for number in range(15)) == 10


async def test_a_producer_that_is_connected_is_not_forgotten_and_does_not_count_as_idle_beyond_the_limit() -> None:
    dedup, _ = await learned(0)
    dedup.on_appended([published(dedup, "here")], Position(1, 0))
    for number in range(11):
        leave_before_it_is_durable(dedup, f"p{number}", 0.0)
    assert dedup.forget_idle(IDLE_S, 1.0, "here".__eq__) == 2
    assert dedup.forget_idle(IDLE_S, 1_000.0, "here".__eq__) == 10 - 1
    assert is_known(dedup, "here")


async def test_one_that_comes_back_is_away_from_when_it_leaves_again() -> None:
    dedup, _ = await learned(0)
    leave_before_it_is_durable(dedup, "p", 0.0)
    dedup.forget_idle(IDLE_S, 10.0, nobody)
    dedup.on_connected("p")
    dedup.on_disconnected("p", 90.0)
    assert dedup.forget_idle(IDLE_S, 150.0, nobody) == 0
    assert dedup.judge(publish_of("p"), counts=True) is Verdict.DUPLICATE
