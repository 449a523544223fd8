"""What is missing between an offset and a topic: removed, lost, or of another topic."""

from __future__ import annotations

import logging

import pytest

from magnetar.errors import DataLossError, DataTrimmedError, GapUnknownError, TopicRecreatedError
from magnetar.spark.reading.stream_offsets import UNKNOWN, Spot, begin_at, earliest_of, require_reached, tolerate
from tests.unit.spark.reading.topic_world import ledger, segments

LEFT = segments(ledger(5, 10, first_index=100), ledger(8, 4, first_index=110))


def test_a_spot_that_is_there_is_where_reading_begins() -> None:
    assert begin_at(Spot(5, 3, 1, 103), LEFT).spot == Spot(5, 3, 1)
    assert begin_at(Spot(8, 4, 0, 114), LEFT).trouble is None


def test_messages_that_retention_removed_are_a_gap_with_a_number() -> None:
    begin = begin_at(Spot(3, 7, 0, 90), LEFT)
    assert begin.spot == Spot(5, 0)
    assert isinstance(begin.trouble, DataTrimmedError)
    assert "10 messages" in str(begin.trouble)
    assert "not lost" in str(begin.trouble)


def test_a_ledger_that_was_read_to_its_end_may_go_without_a_gap() -> None:
    begin = begin_at(Spot(3, 17, 0, 100), LEFT)
    assert (begin.spot, begin.trouble) == (Spot(5, 0), None)


def test_a_first_entry_that_cannot_be_read_leaves_untold_whether_there_is_a_gap() -> None:
    untold = segments(ledger(5, 10, first_index=None), ledger(8, 4, first_index=110))
    assert earliest_of(untold).index == UNKNOWN
    begin = begin_at(Spot(3, 17, 0, 100), untold)
    assert (begin.spot, type(begin.trouble)) == (Spot(5, 0), GapUnknownError)
    assert begin.trouble is not None
    assert begin.trouble.retryable
    assert begin_at(Spot(5, 3, 0, 103), untold).trouble is None


def test_a_topic_made_anew_is_not_taken_for_the_old_one() -> None:
    anew = segments(ledger(20, 3, first_index=0))
    begin = begin_at(Spot(8, 4, 0, 114), anew)
    assert (begin.spot, type(begin.trouble)) == (Spot(20, 0), TopicRecreatedError)
    assert "checkpointLocation" in str(begin.trouble)


def test_a_topic_that_ends_before_the_spot_was_rolled_back() -> None:
    assert isinstance(begin_at(Spot(9, 0, 0, 150), LEFT).trouble, TopicRecreatedError)
    assert isinstance(require_reached(Spot(9, 0, 0, 150), LEFT), TopicRecreatedError)


def test_an_empty_ledger_that_was_dropped_is_no_trouble() -> None:
    begin = begin_at(Spot(9, 0, 0, 114), LEFT)
    assert (begin.spot, begin.trouble) == (Spot(8, 4), None)
    assert require_reached(Spot(9, 0, 0, 114), LEFT) is None


def test_without_fail_on_data_loss_a_gap_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(DataLossError, match="failOnDataLoss"):
        tolerate(begin_at(Spot(3, 7, 0, 90), LEFT).trouble, fail_on_data_loss=True)
    with caplog.at_level(logging.WARNING):
        tolerate(begin_at(Spot(3, 7, 0, 90), LEFT).trouble, fail_on_data_loss=False)
        tolerate(None, fail_on_data_loss=True)
    assert "10 messages" in caplog.text
