"""Which parts of a ledger a repair may touch, and what it may make of them."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.autorecovery.fragments import (
    FragmentRange,
    Targets,
    bookies_with_entries,
    entries_without,
    ranges_text,
    settled_fragments,
    swapped,
    unsettled_numbers,
)
from magnetar.errors import RepairOvertakenError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState

A, B, C, D, E = (BookieId(name) for name in ("a:1", "b:1", "c:1", "d:1", "e:1"))


def ledger(*starts: int, last: int | None = None, write_quorum: int = 2) -> LedgerMetadata:
    """Closed if it has a last entry; every fragment on A, B and C."""
    fragments = tuple(Fragment(EntryId(start), (A, B, C)) for start in starts)
    open_one = LedgerMetadata(
        ledger_id=LedgerId(7), ensemble_size=3, write_quorum=write_quorum, ack_quorum=1, fragments=fragments
    )
    if last is None:
        return open_one
    return replace(open_one, state=LedgerState.CLOSED, last_entry_id=EntryId(last), length=10)


def ranges(metadata: LedgerMetadata, lac: int = -1) -> list[tuple[int, int]]:
    return [(fragment.first, fragment.last) for fragment in settled_fragments(metadata, lac)]


def test_all_fragments_of_a_closed_ledger_may_be_repaired_up_to_its_last_entry() -> None:
    assert ranges(ledger(0, 4, 9, last=12)) == [(0, 3), (4, 8), (9, 12)]


def test_fragments_without_entries_are_left_out() -> None:
    assert ranges(ledger(0, last=-1)) == []
    assert ranges(ledger(0, 5, last=4)) == [(0, 4)]


def test_last_fragment_of_an_open_ledger_is_never_touched() -> None:
    assert ranges(ledger(0), lac=100) == []
    assert ranges(ledger(0, 5), lac=100) == [(0, 4)]
    assert list(unsettled_numbers(ledger(0, 5), 100)) == [1]


@pytest.mark.parametrize(("lac", "settled"), [(3, [(0, 1)]), (4, [(0, 1), (2, 4)]), (-1, [(0, 1)])])
def test_fragment_before_the_last_one_is_touched_only_when_the_lac_has_reached_its_end(
    lac: int, settled: list[tuple[int, int]]
) -> None:
    assert ranges(ledger(0, 2, 5), lac) == settled
    assert len(settled) + len(unsettled_numbers(ledger(0, 2, 5), lac)) == 3


def test_ledger_in_recovery_counts_as_open() -> None:
    assert ranges(replace(ledger(0, 5), state=LedgerState.IN_RECOVERY), lac=-1) == []


def test_bookies_that_hold_nothing_of_a_closed_ledger_do_not_count() -> None:
    assert bookies_with_entries(ledger(0, last=-1)) == set()
    assert bookies_with_entries(ledger(0, last=0)) == {A, B}
    assert bookies_with_entries(ledger(0)) == {A, B, C}


def test_bookies_that_hold_nothing_of_a_finished_fragment_of_an_open_ledger_do_not_count() -> None:
    metadata = ledger(0, 1)
    one_entry, end = metadata.fragments
    metadata = replace(metadata, fragments=(one_entry, replace(end, ensemble=(A, B, D))))
    assert bookies_with_entries(metadata) == {A, B, D}


def closed_targets(swaps: dict[int, BookieId]) -> tuple[LedgerMetadata, Targets]:
    metadata = ledger(0, 5, last=9)
    return metadata, Targets(settled_fragments(metadata, -1)[1], swaps)


def test_swap_changes_one_position_of_one_fragment() -> None:
    metadata, targets = closed_targets({1: D})
    changed = swapped(metadata, targets)
    assert changed is not None
    assert [fragment.ensemble for fragment in changed.fragments] == [(A, B, C), (A, D, C)]


def test_swap_that_is_stored_already_changes_nothing() -> None:
    metadata, targets = closed_targets({1: D})
    changed = swapped(metadata, targets)
    assert changed is not None
    assert swapped(changed, targets) is None


def test_swap_is_refused_if_another_worker_was_faster() -> None:
    metadata, ours = closed_targets({1: D})
    _, theirs = closed_targets({1: E})
    changed = swapped(metadata, theirs)
    assert changed is not None
    with pytest.raises(RepairOvertakenError, match="another worker"):
        swapped(changed, ours)


def test_bookie_is_never_put_into_a_fragment_that_has_it_already() -> None:
    metadata, ours = closed_targets({1: D})
    _, theirs = closed_targets({0: D})
    changed = swapped(metadata, theirs)
    assert changed is not None
    with pytest.raises(RepairOvertakenError, match="already"):
        swapped(changed, ours)


def test_swap_of_a_fragment_that_vanished_is_refused() -> None:
    _, targets = closed_targets({1: D})
    with pytest.raises(RepairOvertakenError, match="no fragment"):
        swapped(ledger(0, last=9), targets)


def test_swap_in_the_last_fragment_of_an_open_ledger_is_refused() -> None:
    _, targets = closed_targets({1: D})
    with pytest.raises(RepairOvertakenError, match="written again"):
        swapped(ledger(0, 5), targets)


def test_swapped_position_gets_all_its_entries_and_a_filled_one_only_those_that_it_lacks() -> None:
    fragment = FragmentRange(0, 0, 5, (A, B, C), 2)
    targets = Targets(fragment, {0: D}, {1: (3, 4)})
    assert list(targets.entries()) == [(0, (D,)), (2, (D,)), (3, (D, B)), (4, (B,)), (5, (D,))]
    assert targets.count() == 6
    assert list(Targets(fragment, {}, {1: (4, 1)}).entries()) == [(1, (B,)), (4, (B,))]


def test_bookie_that_is_to_be_replaced_is_asked_last() -> None:
    fragment = FragmentRange(0, 0, 5, (A, B, C), 2)
    assert Targets(fragment, {0: D}).sources(3) == [1, 0]
    assert Targets(fragment, {1: D}).sources(3) == [0, 1]


def test_entries_are_hopeless_only_if_all_their_bookies_are() -> None:
    fragment = FragmentRange(0, 0, 8, (A, B, C), 2)
    assert list(entries_without(fragment, lambda bookie: bookie == C)) == [0, 3, 6]
    assert list(entries_without(fragment, lambda bookie: bookie != A)) == []


def test_list_of_entries_is_short_and_exact() -> None:
    assert ranges_text([3, 4, 5, 9]) == "3-5,9"
    assert ranges_text([]) == ""
    assert ranges_text(range(0, 1_000, 2)).endswith("398 and 300 more")
