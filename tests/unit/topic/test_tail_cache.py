"""The newest entries of all topics, in bounded memory."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.topic.log.tail_cache import ENTRY_BYTES, TailCache, TopicTail
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

SIZE = ENTRY_BYTES + 100


def run(ledger_id: int, first: int, count: int) -> list[LogEntry]:
    return [LogEntry(Position(ledger_id, entry_id), bytes(100), 1) for entry_id in range(first, first + count)]


def add(tail: TopicTail, ledger_id: int, first: int, count: int) -> None:
    tail.add(ledger_id, first, run(ledger_id, first, count))


def ids(entries: list[LogEntry] | None) -> list[tuple[int, int]] | None:
    return None if entries is None else [tuple(entry.position) for entry in entries]  # type: ignore[misc]


def test_reads_begin_at_a_position_and_go_on_over_ledgers() -> None:
    tail = TailCache(2**20).tail()
    add(tail, 1, 0, 3)
    add(tail, 4, 0, 2)
    assert ids(tail.read(Position(1, 1), 10, 2**20)) == [(1, 1), (1, 2), (4, 0), (4, 1)]
    assert ids(tail.read(Position(4, 1), 10, 2**20)) == [(4, 1)]


def test_position_that_is_not_held_is_none() -> None:
    tail = TailCache(2**20).tail()
    assert tail.read(Position(1, 0), 10, 100) is None
    add(tail, 1, 5, 3)
    add(tail, 4, 0, 2)
    for missing in (Position(1, 4), Position(1, 8), Position(2, 0), Position(4, 2), Position(4, -1), Position(5, 0)):
        assert tail.read(missing, 10, 100) is None


def test_read_is_limited_by_entries_and_bytes_but_never_empty() -> None:
    tail = TailCache(2**20).tail()
    add(tail, 1, 0, 10)
    assert len(tail.read(Position(1, 2), 3, 2**20) or ()) == 3
    assert len(tail.read(Position(1, 2), 99, 2 * SIZE) or ()) == 2
    assert len(tail.read(Position(1, 2), 99, 2 * SIZE - 1) or ()) == 1
    assert len(tail.read(Position(1, 2), 1, 1) or ()) == 1


def test_oldest_run_goes_first_whichever_topic_it_is_of() -> None:
    cache = TailCache(10 * SIZE)
    one, other = cache.tail(), cache.tail()
    add(one, 1, 0, 4)
    add(other, 2, 0, 4)
    add(one, 1, 4, 4)
    assert cache.bytes_held == 8 * SIZE
    assert one.read(Position(1, 3), 1, 1) is None
    assert ids(one.read(Position(1, 4), 1, 1)) == [(1, 4)]
    assert ids(other.read(Position(2, 0), 1, 1)) == [(2, 0)]


def test_cache_without_room_holds_nothing() -> None:
    cache = TailCache(0)
    tail = cache.tail()
    add(tail, 1, 0, 4)
    assert tail.read(Position(1, 0), 1, 1) is None
    assert cache.bytes_held == 0


def test_cleared_tail_gives_its_memory_back() -> None:
    cache = TailCache(2**20)
    tail = cache.tail()
    add(tail, 1, 0, 4)
    tail.clear()
    assert cache.bytes_held == 0
    assert tail.read(Position(1, 3), 1, 1) is None
    add(tail, 1, 4, 1)
    assert ids(tail.read(Position(1, 4), 1, 1)) == [(1, 4)]


def test_runs_of_a_cleared_tail_do_not_pile_up() -> None:
    cache = TailCache(2**20)
    tail = cache.tail()
    for entry_id in range(1_000):
        add(tail, 1, entry_id, 1)
        tail.clear()
    assert len(cache._runs) <= 1


@given(
    st.lists(st.tuples(st.integers(0, 1), st.integers(1, 400), st.booleans(), st.booleans()), max_size=40),
    st.integers(1, 900),
)
def test_memory_is_what_is_held_and_within_the_bound(steps: list[tuple[int, int, bool, bool]], room: int) -> None:
    cache = TailCache(room * SIZE)
    tails = [cache.tail(), cache.tail()]
    ledgers, nexts = [1, 1], [0, 0]
    for which, count, rolls, clears in steps:
        if rolls:
            ledgers[which], nexts[which] = ledgers[which] + 1, 0
        add(tails[which], ledgers[which], nexts[which], count)
        nexts[which] += count
        if clears:
            tails[which].clear()
        assert cache.bytes_held == SIZE * sum(map(len, tails))
        assert cache.bytes_held <= cache.bytes_max
        last = Position(ledgers[which], nexts[which] - 1)
        found = tails[which].read(last, 1, 1)
        assert ids(found) == ([tuple(last)] if len(tails[which]) else None)
