"""The book of Shared and Key_Shared alone: where an entry is, and which changes may let another one be delivered."""

from __future__ import annotations

from typing import cast

from magnetar.broker.dispatch.unacked_book import UnackedBook
from magnetar.broker.subscriptions.consumer import Consumer, ConsumerSink, SubscriptionType
from magnetar.topic.position import Position

FIRST, SECOND, THIRD = (Position(1, entry) for entry in range(3))
KEY = 7


def book_with(*names: str, per_consumer: int = 0, per_subscription: int = 0) -> tuple[UnackedBook, list[Consumer]]:
    sink = cast("ConsumerSink", None)  # The book never sends.
    consumers = [Consumer(number, name, sink, SubscriptionType.SHARED) for number, name in enumerate(names)]
    book = UnackedBook(consumers)
    book.set_limits(per_consumer, per_subscription)
    return book, consumers


def deliver_with_key(book: UnackedBook, consumer: Consumer, position: Position) -> None:
    book.deliver(consumer, position, 1, KEY)
    book.hold_key(consumer, KEY)


def test_an_acknowledgement_that_frees_nothing_that_waits_makes_no_room() -> None:
    book, (one,) = book_with("one")
    book.deliver(one, FIRST, 3)
    assert not book.acknowledge(one, [FIRST])
    assert (one.unacked_messages, book.total.messages, one.acked_messages) == (0, 0, 3)


def test_a_consumer_at_its_limit_has_room_once_half_of_it_is_acknowledged() -> None:
    book, (one,) = book_with("one", per_consumer=2)
    book.deliver(one, FIRST, 1)
    book.deliver(one, SECOND, 1)
    assert one.is_blocked
    assert book.acknowledge(one, [FIRST])
    assert not one.is_blocked


def test_a_subscription_at_its_limit_has_room_for_a_replay_before_it_has_room_for_new_entries() -> None:
    book, (one,) = book_with("one", per_subscription=6)
    book.deliver(one, FIRST, 5)
    book.deliver(one, SECOND, 1)
    book.replay.add(THIRD)
    assert book.total.is_blocked
    assert book.acknowledge(one, [SECOND])
    assert book.total.is_blocked


def test_an_entry_may_be_acknowledged_through_another_consumer_than_the_one_that_has_it() -> None:
    book, (one, other) = book_with("one", "other")
    book.deliver(one, FIRST, 2)
    book.acknowledge(other, [FIRST])
    assert book.where(FIRST) is None
    assert (one.unacked_messages, one.acked_messages, other.acked_messages) == (0, 0, 2)


def test_an_entry_that_waits_for_redelivery_and_is_acknowledged_makes_room() -> None:
    book, (one,) = book_with("one")
    book.deliver(one, FIRST, 1)
    book.give_back(one, [FIRST], lambda _: False)
    assert (FIRST in book.replay, book.redeliveries) == (True, {FIRST: 1})
    assert book.acknowledge(one, [FIRST])
    assert (len(book.replay), book.redeliveries, book.total.messages) == (0, {}, 0)


def test_what_a_consumer_does_not_have_it_cannot_give_back() -> None:
    book, (one, other) = book_with("one", "other")
    book.deliver(one, FIRST, 1)
    book.give_back(other, [FIRST, SECOND], lambda _: False)
    assert (book.where(FIRST), len(book.replay), other.redelivered_messages) == (one, 0, 0)


def test_what_is_acknowledged_and_given_back_does_not_wait_again() -> None:
    book, (one,) = book_with("one")
    book.deliver(one, FIRST, 1)
    book.give_back(one, [FIRST], lambda position: position == FIRST)
    assert (book.where(FIRST), len(book.replay), book.total.messages) == (None, 0, 0)


def test_entries_of_a_consumer_that_left_wait_again_and_do_not_count_as_given_back() -> None:
    book, consumers = book_with("one", "other")
    one = consumers.pop(0)
    book.deliver(one, FIRST, 4)
    book.take_all(one)
    assert (list(book.replay), book.redeliveries) == ([FIRST], {})
    assert (book.total.messages, one.unacked_messages, one.pending) == (0, 0, {})


def test_a_key_is_with_its_consumer_until_all_its_entries_are_acknowledged() -> None:
    book, (one,) = book_with("one")
    deliver_with_key(book, one, FIRST)
    deliver_with_key(book, one, SECOND)
    book.replay.add(THIRD, KEY)
    assert not book.acknowledge(one, [FIRST])
    assert book.holders == {KEY: (one, 1)}
    assert book.acknowledge(one, [SECOND])
    assert book.holders == {}


def test_part_of_a_batch_leaves_the_rest_with_its_consumer() -> None:
    book, (one, other) = book_with("one", "other")
    book.deliver(one, FIRST, 10)
    book.acknowledge_part(other, FIRST, 4)
    assert (one.pending, one.unacked_messages, other.acked_messages) == ({FIRST: (4, 0)}, 4, 6)
    book.acknowledge_part(one, FIRST, 9)  # An older state of the batch adds nothing.
    assert (one.unacked_messages, one.acked_messages) == (4, 0)


def test_what_the_cursor_has_passed_is_nowhere() -> None:
    book, (one,) = book_with("one")
    deliver_with_key(book, one, FIRST)
    book.replay.add(SECOND, KEY)
    book.replay.add(THIRD, KEY)
    book.drop_through(SECOND)
    assert (one.pending, book.total.messages, book.holders, list(book.replay)) == ({}, 0, {}, [THIRD])
    assert book.placed_among({FIRST, SECOND, THIRD}) == {THIRD}
