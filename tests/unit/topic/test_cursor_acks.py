"""The acknowledgement state against a naive model: a plain set of acknowledged positions, always scanned in full."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from magnetar.config.topic import CursorConfig
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import BATCH_MESSAGES_MAX, AckState, words_of
from magnetar.topic.cursor.codec import node_with_state, restore_acks, state_in_entry, state_in_node, take_snapshot
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo

ENTRY_BYTES = 10
BATCH = 5

STRANGE = [EARLIEST, LATEST, Position(1, -1), Position(2, 99), Position(3, -1), Position(4, 30), Position(77, 0)]

places = st.integers(0, 29)
"""Which position: an existing one, counted from the mark-delete position, or a strange one."""


def chain_of(*entries: int) -> LedgerChain:
    """Ledgers 1, 2, … with these numbers of entries."""
    chain = LedgerChain()
    for ledger_id, count in enumerate(entries, 1):
        chain.begin(ledger_id)
        chain.grow(count, count * ENTRY_BYTES)
    return chain


def run(ledger_id: int, first: int, last: int) -> list[Position]:
    return [Position(ledger_id, entry_id) for entry_id in range(first, last + 1)]


class AcksAgainstModel(RuleBasedStateMachine):
    @initialize(entries=st.integers(0, 12))
    def begin(self, entries: int) -> None:
        self.chain = chain_of(entries)
        self.acks = AckState(self.chain, self.chain.previous_position(EARLIEST))
        self.acked: set[Position] = set()
        self.partly: dict[Position, set[int]] = {}

    def existing(self) -> list[Position]:
        return [Position(span.ledger_id, entry) for span in self.chain.spans for entry in range(span.entries)]

    def at(self, place: int) -> Position:
        existing = self.existing()
        if place >= 30 - len(STRANGE) or not existing:
            return STRANGE[place % len(STRANGE)]
        behind = sum(p <= self.acks.mark_delete for p in existing)
        return existing[(behind + place - 3) % len(existing)]

    def forget_partly(self) -> None:
        alive = self.existing()
        self.partly = {p: left for p, left in self.partly.items() if p in alive and p not in self.acked}

    # --- the log changes ----------------------------------------------------------------------------------------------

    @rule(count=st.integers(1, 6))
    def append(self, count: int) -> None:
        span = self.chain.spans[-1]
        self.chain.grow(span.entries + count, span.size_bytes + count * ENTRY_BYTES)

    @precondition(lambda self: len(self.chain.spans) < 8)
    @rule(gap=st.integers(1, 2))
    def roll(self, gap: int) -> None:
        self.chain.begin(self.chain.spans[-1].ledger_id + gap)

    @precondition(lambda self: len(self.chain.spans) > 1)
    @rule(data=st.data())
    def trim(self, data: st.DataObject) -> None:
        closed = [span.ledger_id for span in self.chain.spans[:-1]]
        gone = data.draw(st.sets(st.sampled_from(closed)) | st.just(set(closed[:1])))
        self.chain.drop(gone)
        self.acks.settle()
        self.forget_partly()

    # --- acknowledgements ---------------------------------------------------------------------------------------------

    @rule(chosen=st.lists(places, min_size=1, max_size=12))
    def acknowledge(self, chosen: list[int]) -> None:
        self.acknowledge_all([self.at(place) for place in chosen])

    @rule(place=places, count=st.integers(1, 12))
    def acknowledge_a_run(self, place: int, count: int) -> None:
        first = self.at(place)
        self.acknowledge_all(run(first.ledger_id, first.entry_id, first.entry_id + count - 1))

    def acknowledge_all(self, positions: list[Position]) -> None:
        newly = {p for p in positions if p in self.existing()} - self.acked
        assert self.acks.acknowledge(positions) == len(newly)
        self.acked |= newly
        self.forget_partly()

    @rule(place=places, left=st.sets(st.integers(0, BATCH - 1)), is_size_known=st.booleans())
    def acknowledge_batch(self, place: int, left: set[int], is_size_known: bool) -> None:
        position = self.at(place)
        words = words_of(sum(1 << bit for bit in left))
        is_whole = self.acks.acknowledge_batch(position, words, BATCH if is_size_known else 0)
        self.keep_left(position, left, is_size_known=is_size_known)
        assert is_whole == (position in self.acked or position <= self.acks.mark_delete)

    def keep_left(self, position: Position, left: set[int], *, is_size_known: bool) -> None:
        if position in self.existing() and position not in self.acked:
            still = self.partly.get(position, set(range(BATCH))) & left
            if not still:
                self.acked.add(position)
            elif len(still) < BATCH or not is_size_known:
                self.partly[position] = still
            self.forget_partly()

    @rule(place=places, left=st.none() | st.sets(st.integers(0, BATCH - 1), min_size=1))
    def acknowledge_to(self, place: int, left: set[int] | None) -> None:
        position = self.at(place)
        if left is None:
            self.acks.acknowledge_to(position)
        else:
            self.acks.acknowledge_to(position, words_of(sum(1 << bit for bit in left)), BATCH)
            self.keep_left(position, left, is_size_known=True)
        before = [p for p in self.existing() if p < position or (p == position and left is None)]
        self.acked |= set(before)
        self.forget_partly()

    @rule(place=places)
    def seek(self, place: int) -> None:
        position = self.at(place)
        self.acks = AckState(self.chain, self.chain.previous_position(position))
        self.acked = {p for p in self.existing() if p < position}
        self.partly = {}

    @rule(as_bitmaps=st.booleans(), in_node=st.booleans())
    def store_and_restore(self, as_bitmaps: bool, in_node: bool) -> None:
        snapshot = take_snapshot(self.acks, {}, CursorConfig(ranges_as_bitmaps=as_bitmaps))
        if in_node:
            stored = node_with_state(ManagedCursorInfo(cursors_ledger_id=7), snapshot).SerializeToString()
            info = state_in_node(ManagedCursorInfo.FromString(stored))
        else:
            info = state_in_entry(snapshot.info.SerializeToString())
        self.acks = restore_acks(info, self.chain)

    # --- what must hold -----------------------------------------------------------------------------------------------

    @invariant()
    def backlog_equals_a_full_scan(self) -> None:
        backlog = [p for p in self.existing() if p not in self.acked]
        assert self.acks.backlog_entries() == len(backlog)
        assert abs(self.acks.backlog_bytes_estimate() - len(backlog) * ENTRY_BYTES) <= len(self.chain.spans)

    @invariant()
    def every_position_is_known_as_the_model_knows_it(self) -> None:
        for position in self.existing():
            assert self.acks.is_acknowledged(position) == (position in self.acked)
            left = self.partly.get(position)
            assert self.acks.ack_set_of(position) == (None if left is None else [sum(1 << bit for bit in left)])

    @invariant()
    def the_next_unacknowledged_is_the_first_that_a_scan_finds(self) -> None:
        existing = self.existing()
        for position in existing + STRANGE:
            found = next((p for p in existing if p >= position and p not in self.acked), self.chain.end)
            assert self.acks.next_unacknowledged(position) == found

    @invariant()
    def the_mark_delete_position_is_as_far_as_it_can_be(self) -> None:
        existing = self.existing()
        assert all(p in self.acked for p in existing if p <= self.acks.mark_delete)
        following = next((p for p in existing if p > self.acks.mark_delete), None)
        assert following is None or following not in self.acked

    @invariant()
    def runs_and_bitmaps_are_what_is_acknowledged_behind_it(self) -> None:
        behind = {p for p in self.existing() if p in self.acked and p > self.acks.mark_delete}
        runs = list(self.acks.ranges())
        assert len(runs) == self.acks.range_count()
        assert {p for a, b in runs for p in run(a.ledger_id, a.entry_id, b.entry_id)} == behind
        bits = {
            Position(i, bit)
            for i, _, bitmap in self.acks.bitmaps()
            for bit in range(bitmap.bit_length())
            if bitmap >> bit & 1
        }
        assert bits == behind
        assert self.acks.has_gaps == bool(behind or self.partly)
        assert self.acks.last_acknowledged == max(behind | self.partly.keys(), default=self.acks.mark_delete)


TestAcksAgainstModel = AcksAgainstModel.TestCase
TestAcksAgainstModel.settings = settings(max_examples=60, stateful_step_count=30)


def test_a_run_in_order_leaves_no_gaps() -> None:
    acks = AckState(chain_of(10, 10, 10), Position(1, -1))
    assert acks.acknowledge(run(1, 0, 9) + run(2, 0, 4)) == 15
    assert (acks.mark_delete, acks.has_gaps, acks.backlog_entries()) == (Position(2, 4), False, 15)


def test_the_last_missing_entry_closes_the_gap_over_ledgers() -> None:
    acks = AckState(chain_of(3, 3, 3), Position(1, -1))
    acks.acknowledge(run(1, 1, 2) + run(2, 0, 2) + run(3, 0, 1))
    assert acks.mark_delete == Position(1, -1)
    acks.acknowledge([Position(1, 0)])
    assert (acks.mark_delete, acks.has_gaps) == (Position(3, 1), False)


def test_acknowledgements_of_what_does_not_exist_take_no_memory() -> None:
    acks = AckState(chain_of(3), Position(1, -1))
    assert acks.acknowledge([Position(1, 2**40), Position(77, 0), Position(1, -5), LATEST]) == 0
    assert not acks.acknowledge_batch(Position(1, 2**40), [1], 5)
    acks.acknowledge_to(Position(77, 5), [1], 5)
    assert (acks.mark_delete, acks.has_gaps) == (Position(1, 2), False)


def test_the_place_before_the_first_entry_of_a_ledger_is_not_acknowledged_with_a_later_one() -> None:
    acks = AckState(chain_of(0, 0, 2), Position(1, -1))
    acks.acknowledge([Position(3, 1)])
    assert not acks.is_acknowledged(Position(3, -1))
    assert not acks.acknowledge_batch(Position(3, -1), [], 5)
    assert (acks.mark_delete, acks.backlog_entries()) == (Position(1, -1), 1)


def test_an_acknowledgement_set_larger_than_any_batch_says_nothing() -> None:
    acks = AckState(chain_of(3), Position(1, -1))
    assert not acks.acknowledge_batch(Position(1, 1), [1] * (BATCH_MESSAGES_MAX // 64 + 1), 0)
    assert not acks.has_gaps


def test_a_partly_acknowledged_batch_is_delivered_with_what_is_left() -> None:
    acks = AckState(chain_of(3), Position(1, -1))
    assert not acks.acknowledge_batch(Position(1, 0), [0b1101], 4)
    assert not acks.acknowledge_batch(Position(1, 0), [0b0111], 4)
    assert acks.ack_set_of(Position(1, 0)) == [0b0101]
    assert acks.backlog_entries() == 3
    assert acks.acknowledge_batch(Position(1, 0), [0b1010], 4)
    assert (acks.ack_set_of(Position(1, 0)), acks.mark_delete) == (None, Position(1, 0))


def test_words_of_a_batch_are_signed_as_on_the_wire() -> None:
    acks = AckState(chain_of(3), Position(1, -1))
    acks.acknowledge_batch(Position(1, 0), [-(2**63), 1], 65)
    assert acks.ack_set_of(Position(1, 0)) == [-(2**63), 1]


def test_a_mark_delete_position_behind_the_log_is_its_last_entry() -> None:
    assert AckState(chain_of(3, 0), Position(2, 7)).mark_delete == Position(1, 2)


@pytest.mark.parametrize("stride", [1, 2, 7])
def test_a_long_ledger_takes_little_memory_once_it_is_acknowledged(stride: int) -> None:
    acks: Any = AckState(chain_of(1, 50_000, 1), Position(1, -1))
    for start in range(stride):
        acks.acknowledge(run(2, 0, 49_999)[start::stride])
    assert acks.range_count() == 1
    assert sum(len(acked.flags) for acked in acks._ledgers.values()) == 0
