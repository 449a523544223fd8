from __future__ import annotations

import pytest

from magnetar.broker.publishing.publisher import PublishLimit, SubscribeLimit


def test_what_arrives_within_the_rate_is_not_held() -> None:
    limit = PublishLimit(100, 0, now=0.0)
    assert limit.take(100, 10**9, now=0.0) == 0.0


def test_what_is_beyond_the_rate_is_held_for_as_long_as_it_takes_to_earn_it() -> None:
    limit = PublishLimit(100, 0, now=0.0)
    assert limit.take(150, 0, now=0.0) == pytest.approx(0.5)
    assert limit.take(0, 0, now=0.25) == pytest.approx(0.25)
    assert limit.take(0, 0, now=0.5) == 0.0


def test_the_slower_of_both_rates_counts() -> None:
    limit = PublishLimit(10, 1_000, now=0.0)
    assert limit.take(11, 3_000, now=0.0) == pytest.approx(2.0)


def test_no_more_than_a_second_is_saved_up() -> None:
    limit = PublishLimit(10, 0, now=0.0)
    limit.take(0, 0, now=1_000.0)
    assert limit.take(20, 0, now=1_000.0) == pytest.approx(1.0)


def test_rates_of_zero_limit_nothing() -> None:
    limit = PublishLimit(0, -1, now=0.0)
    assert limit.take(10**9, 10**12, now=0.0) == 0.0


def test_a_consumer_that_comes_too_often_is_refused_until_its_period_is_over_and_others_are_not() -> None:
    limit = SubscribeLimit()
    one, other = ("host", "one", 1), ("host", "other", 2)
    assert limit.admits(one, 0.0)
    limit.change(2, 10)
    assert [limit.admits(one, now) for now in (0.0, 1.0, 2.0)] == [True, True, False]
    assert limit.admits(other, 2.0)
    assert limit.admits(one, 11.0)
