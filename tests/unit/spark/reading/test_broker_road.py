"""What a broker sends, cut into runs: markers are missing from it, and so is the index."""

from __future__ import annotations

from magnetar.client.consuming.raw_reader import RawEntry
from magnetar.spark.reading.fetching import _Counter
from magnetar.spark.reading.ranges import Range
from tests.unit.spark.reading.topic_world import TOPIC, ledger

WANTED = Range(TOPIC, 3, ledger(5, 100), 10, 20, skipped=2, stop=4)


def entry(entry_id: int, messages: int = 1, ledger_id: int = 5) -> RawEntry:
    return RawEntry(ledger_id, entry_id, messages, b"%d" % entry_id)


def test_runs_end_where_entries_are_missing_and_each_missing_one_counts_as_a_message() -> None:
    counter = _Counter(WANTED, first_index=1_000)
    first, second = counter.runs([entry(10, 5), entry(11, 5), entry(14, 5)])
    assert (first.first_entry_id, len(first.entries), first.first_index) == (10, 2, 1_000)
    assert (second.first_entry_id, len(second.entries), second.first_index) == (14, 1, 1_012)
    assert (first.first_batch_index, second.first_batch_index) == (2, 0)
    (third,) = counter.runs([entry(15)])
    assert third.first_index == 1_017
    assert not counter.is_done


def test_the_last_entry_ends_it_and_what_is_behind_is_left_out() -> None:
    counter = _Counter(WANTED, first_index=0)
    (run,) = counter.runs([entry(19), entry(20), entry(21)])
    assert (counter.is_done, len(run.entries), run.end_batch_index) == (True, 2, 4)


def test_an_entry_of_a_later_ledger_ends_it() -> None:
    counter = _Counter(WANTED, first_index=0)
    assert counter.runs([entry(0, ledger_id=6)]) == []
    assert counter.is_done
