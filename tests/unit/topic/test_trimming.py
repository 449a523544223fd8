"""Which ledgers may go."""

from __future__ import annotations

import pytest

from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.log import Retention, ledgers_to_drop
from magnetar.topic.position import EARLIEST, LATEST, Position

FOR_EVER = -1
SPANS = [
    LedgerSpan(1, 10, 100, closed_ms=1_000),
    LedgerSpan(2, 10, 100, closed_ms=2_000),
    LedgerSpan(3, 10, 100, closed_ms=3_000),
    LedgerSpan(4, 5, 50),
]


@pytest.mark.parametrize(
    ("consumed", "gone"),
    [
        (EARLIEST, []),
        (Position(1, 8), []),
        (Position(1, 9), [1]),
        (Position(2, -1), [1]),
        (Position(3, 5), [1, 2]),
        (Position(4, 4), [1, 2, 3]),
        (LATEST, [1, 2, 3]),
    ],
)
def test_ledgers_go_when_all_of_them_is_consumed_but_never_the_last(consumed: Position, gone: list[int]) -> None:
    assert [span.ledger_id for span in ledgers_to_drop(SPANS, consumed, Retention(), 5_000)] == gone


@pytest.mark.parametrize(
    ("retention", "gone"),
    [
        (Retention(FOR_EVER, FOR_EVER), []),
        (Retention(2_500, FOR_EVER), [1, 2]),
        (Retention(FOR_EVER, 200), [1]),
        (Retention(FOR_EVER, 50), [1, 2, 3]),
        (Retention(FOR_EVER, 400), []),
        (Retention(3_500, 150), [1, 2]),
        (Retention(0, 0), [1, 2, 3]),
    ],
)
def test_retention_keeps_what_is_younger_and_what_fits(retention: Retention, gone: list[int]) -> None:
    assert [span.ledger_id for span in ledgers_to_drop(SPANS, LATEST, retention, 5_000)] == gone


def test_nothing_goes_behind_a_ledger_that_stays() -> None:
    spans = [LedgerSpan(1, 1, 10, closed_ms=9_000), LedgerSpan(2, 1, 10, closed_ms=1_000), LedgerSpan(3)]
    assert ledgers_to_drop(spans, LATEST, Retention(2_000, FOR_EVER), 10_000) == []
