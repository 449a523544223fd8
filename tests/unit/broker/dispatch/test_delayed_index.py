from __future__ import annotations

import gc
import heapq
import sys
import tracemalloc

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.broker.dispatch import delayed_index
from magnetar.broker.dispatch.delayed_index import DelayedIndex
from magnetar.topic.position import Position

A_MILLION = 1_000_000


def fill(index: DelayedIndex, entries: int) -> None:
    for number in range(entries):
        due_ms = 1_700_000_000_000 + number * 7_919 % 10_000_019  # Mixed, not rising.
        index.add(due_ms, Position(number // 50_000, number % 50_000))


def deep_size(index: DelayedIndex) -> int:
    """All that the index refers to, as Python has it."""
    blocks = [block for _, _, block in index._blocks]
    arrays = [part for block in blocks for part in (block._dues, block._ledgers, block._entries, block)]
    heads = [part for head in index._blocks for part in (head, head[0], *head[0])]
    new = [part for triple in index._new for part in (triple, *triple)]
    parts = [index._blocks, index._new, *arrays, *heads, *new]
    return sum(sys.getsizeof(part) for part in parts)


def test_a_million_delayed_entries_take_less_than_100_mb() -> None:
    index = DelayedIndex(2 * A_MILLION)
    fill(index, A_MILLION)
    assert len(index) == A_MILLION
    size = deep_size(index)
    assert size < 30e6, f"{size / 1e6:.1f} MB"
    assert 0.8 < index.memory_bytes / size < 1.25
    assert index.pop_due(2**62, 1) == [Position(0, 0)]


def test_filling_the_index_needs_little_more_memory_than_it_then_has() -> None:
    gc.collect()
    tracemalloc.start()
    try:
        index = DelayedIndex(A_MILLION)
        fill(index, 60_000)
        held, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert held < 60_000 * 30
    assert peak < held + 2_000_000


def test_entries_that_are_due_together_come_in_the_order_of_the_topic() -> None:
    index = DelayedIndex(10_000)
    for number in reversed(range(9_000)):
        index.add(500, Position(number // 100, number % 100))
    assert index.pop_due(499, 10) == []
    due = index.pop_due(500, 10_000)
    assert due == sorted(due)
    assert len(due) == 9_000
    assert index.next_due_ms is None


def test_an_index_that_is_full_drops_the_latest_and_knows_from_where_to_find_them() -> None:
    index = DelayedIndex(20_000)
    for number in range(100_000):
        index.add(1_000_000 - number, Position(1, number))  # Each earlier than those before.
    assert len(index) <= 20_000 + delayed_index._BLOCK_ENTRIES
    assert index.horizon is not None
    assert index.beyond_first is not None
    assert index.beyond_first <= Position(1, 0)
    due = index.pop_due(2**62, 100_000)
    assert due == [Position(1, number) for number in range(99_999, 99_999 - len(due), -1)]


def test_an_index_that_is_full_of_one_time_keeps_the_first_of_the_topic() -> None:
    index = DelayedIndex(10_000)
    for number in range(50_000):
        index.add(77, Position(1, number))
    kept = index.pop_due(77, 50_000)
    assert kept == [Position(1, number) for number in range(len(kept))]
    assert 5_000 < len(kept) < 15_000


def test_what_was_found_again_becomes_a_part_of_the_index() -> None:
    index, found = DelayedIndex(10_000), DelayedIndex(10_000)
    for number in range(30_000):
        index.add(number, Position(1, number))
    horizon = index.horizon
    assert horizon is not None
    index.pop_due(2**62, 30_000)
    for number in range(horizon[0], horizon[0] + 6_000):
        found.add(number, Position(1, number))
    index.absorb(found)
    assert index.horizon is None
    assert index.pop_due(2**62, 30_000) == [Position(1, n) for n in range(horizon[0], horizon[0] + 6_000)]


some_triples = st.lists(st.tuples(st.integers(0, 50), st.integers(0, 5), st.integers(0, 400)), unique=True)


@settings(max_examples=200)
@given(some_triples, st.data())
def test_it_does_what_a_heap_does(triples: list[tuple[int, int, int]], data: st.DataObject) -> None:
    block_entries = delayed_index._BLOCK_ENTRIES
    delayed_index._BLOCK_ENTRIES = 8  # type: ignore[misc]
    try:
        index, heap = DelayedIndex(10**6), []
        for due_ms, ledger_id, entry_id in triples:
            index.add(due_ms, Position(ledger_id, entry_id))
            heapq.heappush(heap, (due_ms, ledger_id, entry_id))
            if data.draw(st.integers(0, 9)) == 0:
                until = data.draw(st.integers(0, 60))
                expected = []
                while heap and heap[0][0] <= until and len(expected) < 5:
                    expected.append(Position(*heapq.heappop(heap)[1:]))
                assert index.pop_due(until, 5) == expected
            assert len(index) == len(heap)
            assert index.next_due_ms == (heap[0][0] if heap else None)
    finally:
        delayed_index._BLOCK_ENTRIES = block_entries  # type: ignore[misc]
