"""Steps from one position to its neighbours in the same ledger."""

from __future__ import annotations

from magnetar.topic.position import EARLIEST, LATEST, Position


def test_next_is_the_following_entry_of_the_same_ledger() -> None:
    assert Position(7, 4).next == Position(7, 5)


def test_previous_of_a_ledgers_first_entry_is_the_place_before_it() -> None:
    assert Position(7, 0).previous == Position(7, -1)


def test_a_step_forth_and_a_step_back_return_to_the_same_place() -> None:
    for position in (Position(7, -1), Position(7, 0), Position(7, 4), EARLIEST, LATEST):
        assert position.next.previous == position
        assert position.previous.next == position


def test_steps_keep_the_order_of_the_log() -> None:
    assert Position(7, 4).previous < Position(7, 4) < Position(7, 4).next < Position(8, -1)


def test_a_neighbour_is_a_position_and_shows_itself_as_one() -> None:
    assert isinstance(Position(7, 4).next, Position)
    assert str(Position(7, 4).next) == "7:5"
