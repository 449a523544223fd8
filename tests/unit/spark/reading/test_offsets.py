"""Offsets of a stream as JSON, and how a limit is divided."""

from __future__ import annotations

import json

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.errors import CheckpointMismatchError
from magnetar.spark.reading.following import Limit, shares
from magnetar.spark.reading.stream_offsets import Offset, Spot, from_json, to_json


def test_offsets_are_the_same_text_however_they_came_about() -> None:
    spots = {"persistent://t/n/b": Spot(1, 2, 3, 4), "persistent://t/n/a": Spot(5, 6, 0, 7)}
    text = json.dumps(to_json(Offset(spots)))
    assert text == json.dumps(to_json(Offset(dict(reversed(spots.items())))))
    assert text == (
        '{"persistent://t/n/a": {"b": -1, "e": 6, "i": 7, "l": 5}, '
        '"persistent://t/n/b": {"b": 3, "e": 2, "i": 4, "l": 1}, "v": 1}'
    )
    back = from_json(json.loads(text))
    assert back == Offset(spots)
    assert {part: spot.index for part, spot in back.spots.items()} == {part: spot.index for part, spot in spots.items()}


def test_the_end_of_a_first_batch_says_where_it_begins() -> None:
    offset = Offset({"persistent://t/n/a": Spot(5, 6, 0, 7)}, begin={"persistent://t/n/a": Spot(5, 1, 0, 2)})
    text = json.dumps(to_json(offset))
    assert text == (
        '{"begin": {"persistent://t/n/a": {"b": -1, "e": 1, "i": 2, "l": 5}}, '
        '"persistent://t/n/a": {"b": -1, "e": 6, "i": 7, "l": 5}, "v": 1}'
    )
    assert from_json(json.loads(text)) == offset


@pytest.mark.parametrize(
    "offset", [{}, {"v": 2}, {"v": 1, "persistent://t": {"l": 1}}, {"v": 1, "x": 5}, {"v": 1, "begin": 5}]
)
def test_an_offset_that_is_none_of_ours_is_refused(offset: dict[str, object]) -> None:
    with pytest.raises(CheckpointMismatchError, match="checkpoint"):
        from_json(offset)


def test_a_limit_is_divided_by_what_waits() -> None:
    given = shares({"a": 900, "b": 100, "c": 0}, Limit(messages=100))
    assert {part: share.messages for part, share in given.items()} == {"a": 90, "b": 10}


def test_what_fits_is_not_limited() -> None:
    assert shares({"a": 5, "b": 4}, Limit(messages=9))["a"].messages is None


def test_bytes_are_divided_alike() -> None:
    given = shares({"a": 75, "b": 25}, Limit(size_bytes=1_000))
    assert {part: share.size_bytes for part, share in given.items()} == {"a": 750, "b": 250}


@settings(max_examples=40)
@given(st.dictionaries(st.text(max_size=3), st.integers(1, 10**6), min_size=1, max_size=20), st.integers(1, 1_000))
def test_no_limit_is_exceeded_and_somebody_always_goes_on(waiting: dict[str, int], budget: int) -> None:
    if sum(waiting.values()) > budget:
        given = [share.messages or 0 for share in shares(waiting, Limit(messages=budget)).values()]
        assert sum(given) == budget
        assert min(given) >= 1
