"""The window of adds in flight, against a model that keeps everything and is slow."""

from __future__ import annotations

import itertools

from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.ids import BookieId
from magnetar.ledger.writing.pending_adds import PendingAdds
from magnetar.quorum.sizes import QuorumSizes, write_set, write_set_bookies
from tests.rows import every_row
from tests.unit.ledger.ack_set import AckSet

ALL_SIZES = [
    QuorumSizes(ensemble, write, ack)
    for ensemble in range(1, 5)
    for write in range(1, ensemble + 1)
    for ack in range(1, write + 1)
]


def window(sizes: QuorumSizes, count: int, first: int = 0) -> PendingAdds[int]:
    """Entries `first` and on; each token is its entry's id."""
    pending: PendingAdds[int] = PendingAdds(sizes, first)
    for entry_id in range(first, first + count):
        pending.append(b"h%d" % entry_id, b"p%d" % entry_id, entry_id)
    return pending


def test_entry_with_acks_of_fewer_than_the_ack_quorum_is_not_confirmed() -> None:
    pending = window(QuorumSizes(3, 3, 2), 1)
    pending.mark(0, [0])
    assert pending.take_confirmed() == []
    pending.mark(2, [0])
    assert pending.take_confirmed() == [0]
    assert pending.first_entry_id == 1


def test_repeated_ack_from_one_bookie_counts_once() -> None:
    pending = window(QuorumSizes(3, 3, 2), 1)
    pending.mark(1, [0])
    pending.mark(1, [0, 0])
    assert pending.take_confirmed() == []


def test_entries_are_confirmed_in_order_without_gaps() -> None:
    pending = window(QuorumSizes(2, 2, 2), 3)
    for position in (0, 1):
        pending.mark(position, [2, 1])
    assert pending.take_confirmed() == []
    pending.mark(0, [0])
    pending.mark(1, [0])
    assert pending.take_confirmed() == [0, 1, 2]


def test_answers_for_entries_outside_the_window_change_nothing() -> None:
    pending = window(QuorumSizes(1, 1, 1), 2, first=5)
    pending.mark(0, [4, -1, 7, 10**12])
    assert pending.take_confirmed() == []
    pending.mark(0, [5])
    assert pending.take_confirmed() == [5]
    pending.mark(0, [5])  # Late: index -1 would be entry 6.
    assert pending.take_confirmed() == []


def test_ack_of_a_position_that_does_not_hold_the_entry_does_not_count() -> None:
    pending = window(QuorumSizes(3, 2, 2), 1)
    pending.mark(0, [0])
    pending.mark(2, [0])
    assert pending.take_confirmed() == []
    pending.mark(1, [0])
    assert pending.take_confirmed() == [0]


def test_nothing_is_confirmed_while_an_ensemble_change_is_written() -> None:
    pending = window(QuorumSizes(1, 1, 1), 1)
    pending.hold()
    pending.mark(0, [0])
    assert pending.take_confirmed() == []
    assert pending.first_entry_id == 0
    pending.release()
    assert pending.take_confirmed() == [0]


def test_acks_of_a_replaced_bookie_do_not_count() -> None:
    pending = window(QuorumSizes(3, 3, 2), 2)
    pending.mark(0, [0, 1])
    pending.hold()
    pending.mark(1, [0])  # Enough, but not reported yet.
    pending.release(replaced=[0])
    assert pending.take_confirmed() == []
    pending.mark(2, [0])
    assert pending.take_confirmed() == [0]


def test_what_is_forgotten_has_to_be_stored_again() -> None:
    pending = window(QuorumSizes(2, 2, 2), 1)
    pending.mark(0, [0])
    pending.forget([0])
    pending.mark(1, [0])
    assert pending.take_confirmed() == []
    pending.mark(0, [0])
    assert pending.take_confirmed() == [0]


def test_two_positions_replaced_at_once_lose_both_acks() -> None:
    pending = window(QuorumSizes(4, 4, 2), 1)
    pending.hold()
    for position in (0, 1, 2):
        pending.mark(position, [0])
    pending.release(replaced=[0, 2])
    assert pending.take_confirmed() == []
    pending.mark(3, [0])
    assert pending.take_confirmed() == [0]


def test_frames_of_a_position_are_those_of_its_share_from_the_window_on() -> None:
    pending = window(QuorumSizes(3, 2, 1), 5)
    assert pending.frames(0, 0, 5) == [b"h0", b"p0", b"h2", b"p2", b"h3", b"p3"]
    assert pending.frames(1, 1, 2) == [b"h1", b"p1"]
    pending.mark(0, [0])
    pending.take_confirmed()
    assert pending.frames(0, 0, 5) == [b"h2", b"p2", b"h3", b"p3"]


def test_frames_of_all_positions_are_equal_when_everybody_holds_everything() -> None:
    pending = window(QuorumSizes(2, 2, 2), 3)
    assert pending.frames(0, 1, 3) == pending.frames(1, 1, 3) == [b"h1", b"p1", b"h2", b"p2"]


def test_lengths_follow_the_window() -> None:
    pending: PendingAdds[None] = PendingAdds(QuorumSizes(1, 1, 1), 3, length=100)
    for size in (10, 20, 30):
        pending.append(b"head", bytes(size), None)
    assert (pending.length, pending.confirmed_length) == (160, 100)
    pending.mark(0, [3, 4])
    pending.take_confirmed()
    assert (pending.length, pending.confirmed_length) == (160, 130)


def test_drained_window_goes_back_to_the_confirmed_prefix() -> None:
    pending = window(QuorumSizes(1, 1, 1), 3)
    pending.mark(0, [0])
    pending.take_confirmed()
    assert pending.drain() == [1, 2]
    assert (len(pending), pending.next_entry_id) == (0, 1)
    assert pending.length == pending.confirmed_length == len(b"p0")
    pending.mark(0, [1, 2])
    assert pending.take_confirmed() == []


@every_row("sizes", ALL_SIZES, ids=str)
def test_entry_is_confirmed_exactly_when_enough_of_its_write_set_acked(sizes: QuorumSizes) -> None:
    for entry_id in range(sizes.ensemble):
        for acked in itertools.product((False, True), repeat=sizes.ensemble):
            pending = window(sizes, 1, first=entry_id)
            for position in range(sizes.ensemble):
                if acked[position]:
                    pending.mark(position, [entry_id])
            holders = write_set(sizes.ensemble, sizes.write, entry_id)
            enough = sum(acked[position] for position in holders) >= sizes.ack
            assert pending.take_confirmed() == ([entry_id] if enough else [])


@every_row("sizes", ALL_SIZES, ids=str)
def test_the_rule_of_the_ack_quorum_is_that_of_the_sizes(sizes: QuorumSizes) -> None:
    positions = write_set(sizes.ensemble, sizes.write, 0)
    for stored in itertools.product([False, True], repeat=len(positions)):
        holders = [position for position, has_it in zip(positions, stored, strict=True) if has_it]
        pending = window(sizes, 1)
        for position in holders:
            pending.mark(position, [0])
        assert (pending.take_confirmed() == [0]) == sizes.is_acknowledged(sum(1 << position for position in holders))


@every_row("sizes", ALL_SIZES, ids=str)
def test_going_on_without_bookies_is_possible_exactly_when_every_write_set_keeps_its_ack_quorum(
    sizes: QuorumSizes,
) -> None:
    for lost in itertools.product((False, True), repeat=sizes.ensemble):
        failed = [position for position in range(sizes.ensemble) if lost[position]]
        model = Model(sizes)
        for _ in range(sizes.ensemble):
            model.append()
        for entry, position in itertools.product(model.entries, failed):
            entry.on_failure(model.ensemble[position])
        possible = not any(entry.is_broken for entry in model.entries)
        assert window(sizes, 0).can_continue_without(failed) is possible


class Model:
    """The definition: an `AckSet` for every entry, and bookies that have names."""

    def __init__(self, sizes: QuorumSizes) -> None:
        self.sizes = sizes
        self.ensemble = [BookieId(f"b{position}") for position in range(sizes.ensemble)]
        self.entries: list[AckSet] = []
        self.confirmed = 0
        self.held = False
        self._replaced = 0

    def append(self) -> None:
        holders = write_set_bookies(self.ensemble, self.sizes.write)
        self.entries.append(AckSet(holders[len(self.entries) % self.sizes.ensemble], self.sizes.ack))

    def mark(self, position: int, entry_id: int) -> None:
        if 0 <= entry_id < len(self.entries):
            self.entries[entry_id].on_ack(self.ensemble[position])

    def take(self) -> list[int]:
        first = self.confirmed
        while not self.held and self.confirmed < len(self.entries) and self.entries[self.confirmed].is_complete:
            self.confirmed += 1
        return list(range(first, self.confirmed))

    def replace(self, positions: list[int]) -> None:
        for position in positions:
            self._replaced += 1
            old, new = self.ensemble[position], BookieId(f"newcomer {self._replaced}")
            self.ensemble[position] = new
            for entry in self.entries[self.confirmed :]:
                entry.on_replaced(old, new)


@settings(max_examples=300)
@given(sizes=st.sampled_from(ALL_SIZES), data=st.data())
def test_window_behaves_like_the_definition(sizes: QuorumSizes, data: st.DataObject) -> None:
    pending: PendingAdds[int] = PendingAdds(sizes)
    model = Model(sizes)
    for _ in range(data.draw(st.integers(0, 40))):
        match data.draw(st.sampled_from(["append", "append", "mark", "mark", "mark", "hold", "release"])):
            case "append":
                entry_id = pending.next_entry_id
                pending.append(b"h", b"p" * (entry_id % 7), entry_id)
                model.append()
            case "mark":
                position = data.draw(st.integers(0, sizes.ensemble - 1))
                entry_ids = data.draw(st.lists(st.integers(-2, len(model.entries) + 2), max_size=8))
                pending.mark(position, entry_ids)
                for entry_id in entry_ids:
                    model.mark(position, entry_id)
            case "hold":
                pending.hold()
                model.held = True
            case "release":
                positions = data.draw(st.lists(st.integers(0, sizes.ensemble - 1), unique=True))
                pending.release(positions)
                model.held = False
                model.replace(positions)
        assert pending.take_confirmed() == model.take()
        assert pending.first_entry_id == model.confirmed
        assert pending.length - pending.confirmed_length == sum(
            e % 7 for e in range(model.confirmed, len(model.entries))
        )
