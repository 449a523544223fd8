"""Striping, held against dealing cards."""

from __future__ import annotations

import pytest

from magnetar.errors import InvalidQuorumError
from magnetar.ids import BookieId
from magnetar.quorum.sizes import (
    ENSEMBLE_SIZE_MAX,
    HeldEntries,
    QuorumSizes,
    each_held_entry,
    held_entries,
    is_held,
    write_set,
    write_set_bookies,
    write_set_masks,
    write_sets,
)
from tests.rows import every_row
from tests.unit.quorum.worlds import ALL_SIZES, holders
from tests.unit.wire.bookkeeper.samples import golden


@every_row("sizes", ALL_SIZES, ids=str)
def test_entries_are_dealt_round_the_ensemble_one_position_further_each(sizes: QuorumSizes) -> None:
    for entry_id in range(3 * sizes.ensemble):
        positions = write_set(sizes.ensemble, sizes.write, entry_id)
        assert len(positions) == sizes.write
        assert frozenset(positions) == holders(sizes, entry_id)
        for position in range(sizes.ensemble):
            assert is_held(sizes.ensemble, sizes.write, position, entry_id) == (position in positions)


def test_write_sets_are_those_of_apache() -> None:
    """Its class made them: tests/golden/BookkeeperFrames.java."""
    made = {name: positions for name, positions in golden().items() if name.startswith("write-set/")}
    assert made
    for name, positions in made.items():
        ensemble_size, write_quorum, entry_id = map(int, name.split("/")[1:])
        assert write_set(ensemble_size, write_quorum, entry_id) == tuple(positions)


@every_row("sizes", ALL_SIZES, ids=str)
def test_the_masks_are_the_write_sets_without_repeats(sizes: QuorumSizes) -> None:
    masks = write_set_masks(sizes.ensemble, sizes.write)
    as_sets = {frozenset(position for position in range(sizes.ensemble) if mask >> position & 1) for mask in masks}
    assert as_sets == {holders(sizes, entry_id) for entry_id in range(sizes.ensemble)}
    assert len(masks) == len(as_sets)


def test_the_first_position_is_that_of_the_entry_id_itself_not_of_the_distance_in_a_fragment() -> None:
    assert write_set(4, 3, 0) == (0, 1, 2)
    assert write_set(4, 3, 7) == (3, 0, 1)
    assert write_set(3, 2, 2**63 - 1) == ((2**63 - 1) % 3, (2**63) % 3)


def test_the_table_is_made_once_per_ensemble_size_and_write_quorum() -> None:
    assert write_sets(5, 3) is write_sets(5, 3)
    assert write_sets(5, 3)[12 % 5] is write_set(5, 3, 12)


def test_the_bookies_of_a_write_set_come_in_the_order_of_its_positions() -> None:
    ensemble = [BookieId(name) for name in ("b0", "b1", "b2", "b3")]
    assert write_set_bookies(ensemble, 2) == (("b0", "b1"), ("b1", "b2"), ("b2", "b3"), ("b3", "b0"))


@every_row("sizes", [sizes for sizes in ALL_SIZES if sizes.ack == 1], ids=str)
def test_what_a_position_holds_of_a_range_is_what_is_dealt_to_it(sizes: QuorumSizes) -> None:
    ensemble, write = sizes.ensemble, sizes.write
    for position in range(ensemble):
        for first in range(ensemble + 1):
            for last in range(first - 1, first + 2 * ensemble + 2):
                dealt = [entry for entry in range(first, last + 1) if position in holders(sizes, entry)]
                expected = HeldEntries(dealt[0], dealt[-1], len(dealt)) if dealt else None
                assert held_entries(ensemble, write, position, first, last) == expected
                assert list(each_held_entry(ensemble, write, position, first, last)) == dealt


def test_a_huge_range_is_counted_without_walking_through_it() -> None:
    held = held_entries(5, 3, 0, 0, 10**18 - 1)
    assert held == HeldEntries(0, 10**18 - 1, 3 * 10**18 // 5)


@pytest.mark.parametrize(
    ("ensemble", "write", "ack", "message"),
    [
        (0, 0, 0, "ensemble size 0: allowed is 1 to 255"),
        (-3, 1, 1, "ensemble size -3"),
        (ENSEMBLE_SIZE_MAX + 1, 3, 2, "ensemble size 256"),
        (3, 4, 2, "write quorum 4: allowed is 1 to the ensemble size, here 3"),
        (3, 0, 0, "write quorum 0"),
        (3, 2, 3, "ack quorum 3: allowed is 1 to the write quorum, here 2"),
        (3, 2, 0, "ack quorum 0"),
    ],
)
def test_sizes_that_do_not_fit_are_refused_with_what_is_allowed(
    ensemble: int, write: int, ack: int, message: str
) -> None:
    with pytest.raises(InvalidQuorumError, match=message):
        QuorumSizes(ensemble, write, ack)


def test_sizes_print_as_people_write_them() -> None:
    assert str(QuorumSizes(4, 3, 2)) == "E4/Qw3/Qa2"
