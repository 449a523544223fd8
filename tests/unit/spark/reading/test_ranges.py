"""Ranges of entries between two spots, and how they are divided among tasks."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.spark.reading.ranges import Range, batch_splits, divide, ranges_between, stream_splits
from magnetar.spark.reading.stream_offsets import Spot
from tests.unit.spark.reading.topic_world import TOPIC, ledger, segments

CHAIN = segments(ledger(1, 10), ledger(3, 0, 10), ledger(4, 5, 10))


def spans(ranges: list[Range]) -> list[tuple[int, int, int]]:
    return [(each.ledger.ledger_id, each.first, each.last) for each in ranges]


@pytest.mark.parametrize(
    ("start", "end", "expected"),
    [
        (Spot(1, 0), Spot(4, 5), [(1, 0, 9), (4, 0, 4)]),
        (Spot(1, 7), Spot(4, 1), [(1, 7, 9), (4, 0, 0)]),
        (Spot(1, 10), Spot(4, 1), [(4, 0, 0)]),
        (Spot(2, 0), Spot(4, 1), [(4, 0, 0)]),
        (Spot(1, 3), Spot(1, 3), []),
        (Spot(1, 8), Spot(1, 3), []),
        (Spot(1, 0), Spot(9, 9), [(1, 0, 9), (4, 0, 4)]),
    ],
)
def test_ranges_are_whole_entries_from_the_start_up_to_the_end(
    start: Spot, end: Spot, expected: list[tuple[int, int, int]]
) -> None:
    assert spans(ranges_between(CHAIN, -1, start, end)) == expected


def test_a_range_may_begin_and_end_inside_a_batch() -> None:
    first, last = ranges_between(CHAIN, -1, Spot(1, 8, 3), Spot(4, 1, 2))
    assert (first.skipped, first.stop) == (3, None)
    assert (last.last, last.skipped, last.stop) == (1, 0, 2)
    (only,) = ranges_between(CHAIN, -1, Spot(1, 8, 3), Spot(1, 8, 5))
    assert (only.first, only.last, only.skipped, only.stop) == (8, 8, 3, 5)
    assert ranges_between(CHAIN, -1, Spot(1, 8, 3), Spot(1, 8, 3)) == []


def test_one_large_partition_is_read_by_every_core() -> None:
    whole = ranges_between(segments(ledger(1, 1_000, size_bytes=64 * 2**20)), -1, Spot(1, 0), Spot(1, 1_000))
    splits = batch_splits(whole, cores=4, partitions_min=None)
    assert [spans(list(split.ranges)) for split in splits] == [
        [(1, 0, 249)],
        [(1, 250, 499)],
        [(1, 500, 749)],
        [(1, 750, 999)],
    ]


def test_small_partitions_share_a_task() -> None:
    ranges = [Range(f"{TOPIC}-partition-{number}", number, ledger(number, 10), 0, 9) for number in range(20)]
    assert [len(split.ranges) for split in stream_splits(ranges, cores=2, partitions_min=None)] == [20]
    assert [len(split.ranges) for split in stream_splits(ranges, cores=2, partitions_min=4)] == [5, 5, 5, 5]


def test_a_stream_has_no_more_tasks_than_cores_and_a_batch_none_that_is_too_large() -> None:
    whole = ranges_between(segments(ledger(1, 10_000, size_bytes=2**30)), -1, Spot(1, 0), Spot(1, 10_000))
    assert len(stream_splits(whole, cores=2, partitions_min=None)) == 2
    assert len(batch_splits(whole, cores=2, partitions_min=None)) == 9


def test_nothing_to_read_is_no_task() -> None:
    assert divide([], 4) == []


@settings(max_examples=40)
@given(
    sizes=st.lists(st.tuples(st.integers(0, 40), st.integers(1, 100_000)), min_size=1, max_size=8),
    count=st.integers(1, 12),
    inside=st.booleans(),
)
def test_splits_have_every_entry_once_in_order_and_are_about_even(
    sizes: list[tuple[int, int]], count: int, inside: bool
) -> None:
    ledgers = [ledger(at, entries, size_bytes=entries * size) for at, (entries, size) in enumerate(sizes)]
    start = Spot(0, 0, 2 if inside else 0)
    ranges = ranges_between(segments(*ledgers), -1, start, Spot(len(sizes), 0))
    splits = divide(ranges, count)
    assert len(splits) <= count
    pieces = [piece for split in splits for piece in split.ranges]
    entries = [(piece.ledger.ledger_id, entry) for piece in pieces for entry in range(piece.first, piece.last + 1)]
    assert entries == [(at, entry) for at, (number, _) in enumerate(sizes) for entry in range(number)]
    assert [piece.skipped for piece in pieces if piece.skipped] == [piece.skipped for piece in ranges if piece.skipped]
    if pieces:
        largest_entry = max(piece.entry_bytes for piece in pieces)
        share = sum(piece.size_bytes for piece in pieces) / count
        assert all(sum(piece.size_bytes for piece in split.ranges) <= share + largest_entry for split in splits)
