"""How much is read ahead: more for who reads in sequence, little for who does not, and never more than fits."""

from __future__ import annotations

from magnetar.storage.reads import STREAMS_MAX, Streams

MIN, MAX, CACHE = 100, 1_000, 100_000


def streams(cache_bytes: int = CACHE) -> Streams:
    return Streams(MIN, MAX, cache_bytes)


def test_first_read_of_a_ledger_takes_the_least() -> None:
    assert streams().begin(7, 0).ahead_bytes == MIN


def test_read_that_goes_on_where_the_last_one_ended_takes_twice_as_much_up_to_the_limit() -> None:
    found = streams()
    taken = []
    entry = 0
    for _ in range(6):
        fetched = found.begin(7, entry)
        taken.append(fetched.ahead_bytes)
        found.end(7, range(entry, entry + fetched.ahead_bytes // 10), fetched.ahead_bytes)
        entry += fetched.ahead_bytes // 10
    assert taken == [100, 200, 400, 800, 1_000, 1_000]


def test_entries_that_a_fetch_is_likely_to_bring_follow_from_the_last_one() -> None:
    found = streams()
    found.end(7, range(50), 100)
    assert found.begin(7, 50).entries == 100


def test_read_somewhere_else_begins_anew() -> None:
    found = streams()
    found.end(7, range(10), 800)
    assert found.begin(7, 5).ahead_bytes == MIN
    assert found.begin(8, 10).ahead_bytes == MIN


def test_all_streams_together_take_at_most_half_of_the_cache() -> None:
    found = streams(cache_bytes=4_000)
    for ledger_id in range(10):
        found.end(ledger_id, range(10), 800)
    assert sum(found.begin(ledger_id, 10).ahead_bytes for ledger_id in range(10)) <= 2_000


def test_quiet_streams_are_forgotten_and_deleted_ledgers_too() -> None:
    found = streams()
    for ledger_id in range(STREAMS_MAX + 10):
        found.end(ledger_id, range(10), 800)
    assert len(found._streams) == STREAMS_MAX
    assert found.begin(0, 10).ahead_bytes == MIN
    found.forget(STREAMS_MAX)
    assert found.begin(STREAMS_MAX, 10).ahead_bytes == MIN
