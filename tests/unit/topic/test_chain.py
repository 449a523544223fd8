"""Positions over a chain of ledgers, against a list of all positions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.position import EARLIEST, LATEST, Position

CHAINS = st.lists(st.tuples(st.integers(1, 3), st.integers(0, 4)), min_size=1, max_size=5)
PLACES = st.builds(Position, st.integers(-1, 16), st.integers(-1, 6))


def spans_of(gaps_and_entries: list[tuple[int, int]]) -> list[LedgerSpan]:
    ledger_id = 0
    spans = []
    for gap, entries in gaps_and_entries:
        ledger_id += gap
        spans.append(LedgerSpan(ledger_id, entries, 10 * entries, 1))
    return spans


def all_positions(spans: list[LedgerSpan]) -> list[Position]:
    return [Position(span.ledger_id, entry) for span in spans for entry in range(span.entries)]


@given(CHAINS, PLACES)
def test_steps_agree_with_a_list_of_all_positions(shape: list[tuple[int, int]], place: Position) -> None:
    spans = spans_of(shape)
    chain, positions = LedgerChain(spans), all_positions(spans)
    end, start = Position(spans[-1].ledger_id, spans[-1].entries), Position(spans[0].ledger_id, -1)
    behind = [position for position in positions if position > place]
    before = [position for position in positions if position < place]
    assert chain.next_position(place) == (behind[0] if behind else end)
    assert chain.previous_position(place) == (before[-1] if before else start)
    assert chain.contains(place) == (place in positions)
    assert chain.at_or_after(place) == (place if place in positions else chain.next_position(place))
    assert chain.clamp(place) == (place if place in positions else chain.previous_position(place))


@given(CHAINS, PLACES, PLACES)
def test_entries_between_are_those_behind_the_first_up_to_the_second(
    shape: list[tuple[int, int]], after: Position, up_to: Position
) -> None:
    spans = spans_of(shape)
    wanted = sum(after < position <= up_to for position in all_positions(spans))
    assert LedgerChain(spans).entries_between(after, up_to) == wanted
    assert LedgerChain(spans).bytes_between(after, up_to) == 10 * wanted


@given(CHAINS, PLACES, st.integers(0, 12))
def test_position_after_so_many_entries(shape: list[tuple[int, int]], after: Position, entries: int) -> None:
    spans = spans_of(shape)
    chain, positions = LedgerChain(spans), all_positions(spans)
    expected = chain.clamp(after)
    for position in [position for position in positions if position > after][:entries]:
        expected = position
    assert chain.position_after(after, entries) == expected


@given(CHAINS, st.integers(0, 3))
def test_ends_of_the_chain(shape: list[tuple[int, int]], dropped: int) -> None:
    spans = spans_of(shape)
    chain = LedgerChain(spans)
    chain.drop([span.ledger_id for span in spans[:-1][:dropped]])
    positions = all_positions(spans[min(dropped, len(spans) - 1) :])
    end = Position(spans[-1].ledger_id, spans[-1].entries)
    assert chain.first_position == (positions[0] if positions else end)
    assert chain.entries == len(positions)
    assert chain.entries_between(EARLIEST, LATEST) == len(positions)
    if positions:
        assert chain.last_confirmed == positions[-1]


def test_last_ledger_grows_and_others_follow() -> None:
    chain = LedgerChain([LedgerSpan(3, 2, 20, 5)])
    chain.begin(7)
    assert (chain.last_confirmed, chain.end) == (Position(3, 1), Position(7, 0))
    chain.grow(2, 33)
    assert (chain.last_confirmed, chain.end) == (Position(7, 1), Position(7, 2))
    chain.close_last(9)
    chain.begin(8)
    assert chain.spans == (LedgerSpan(3, 2, 20, 5), LedgerSpan(7, 2, 33, 9), LedgerSpan(8))
    assert chain.next_position(Position(7, 1)) == Position(8, 0)
    assert chain.size_bytes == 53


def test_last_confirmed_does_not_go_back_when_everything_is_dropped() -> None:
    chain = LedgerChain([LedgerSpan(3, 2, 20, 5)])
    chain.begin(7)
    chain.drop([3])
    assert chain.last_confirmed == Position(7, -1)
    assert chain.entries_between(Position(3, 1), chain.last_confirmed) == 0
    assert chain.clamp(Position(3, 1)) == Position(7, -1)


def test_chain_without_ledgers_keeps_its_end() -> None:
    chain = LedgerChain([LedgerSpan(3, 2, 20, 5)])
    chain.drop([3])
    assert chain.last_confirmed == Position(3, 1)
    assert chain.first_position == chain.end == Position(3, 2)
    assert chain.clamp(LATEST) == Position(3, 1)
    assert not chain.contains(Position(3, 1))


def test_ledger_ids_only_grow() -> None:
    chain = LedgerChain([LedgerSpan(3)])
    with pytest.raises(AssertionError):
        chain.begin(3)
