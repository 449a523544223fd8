"""Coverage, exhaustively: every E ≤ 6 and every set of answers, against what the words mean.

The yardstick does not count anything. An entry is acknowledged by some Qa bookies of its write set, so it tries all
choices of Qa bookies and asks whether a bookie that answered is among them.
"""

from __future__ import annotations

from functools import cache
from itertools import combinations, permutations, product

import pytest

from magnetar.quorum.coverage import (
    Coverage,
    EnsembleCoverage,
    Meaning,
    Recovered,
    RecoveryRead,
    absence_coverage,
    ensemble_coverage,
    meaning_of,
)
from magnetar.quorum.sizes import QuorumSizes, write_set
from magnetar.wire.bookkeeper.codes import Code
from tests.rows import every_row
from tests.unit.quorum.worlds import ALL_SIZES, holders, subsets


@cache
def possible_ack_sets(sizes: QuorumSizes) -> frozenset[frozenset[int]]:
    """All ways in which some entry can have been acknowledged by just enough bookies."""
    return frozenset(
        frozenset(acked)
        for entry_id in range(sizes.ensemble)
        for acked in combinations(sorted(holders(sizes, entry_id)), sizes.ack)
    )


@cache
def is_covered(sizes: QuorumSizes, answered: frozenset[int]) -> bool:
    """No entry can be, or become, acknowledged without one of those who answered."""
    return all(acked & answered for acked in possible_ack_sets(sizes))


def bits(positions: frozenset[int]) -> int:
    return sum(1 << position for position in positions)


# --- the whole ensemble -----------------------------------------------------------------------------------------------


@every_row("sizes", ALL_SIZES, ids=str)
def test_an_ensemble_is_covered_when_no_entry_can_be_acknowledged_without_an_answerer(sizes: QuorumSizes) -> None:
    everybody = frozenset(range(sizes.ensemble))
    for answered in subsets(range(sizes.ensemble)):
        for failed in subsets(range(sizes.ensemble)):  # Some of them may have answered after all.
            if is_covered(sizes, answered):
                expected = Coverage.COVERED
            elif is_covered(sizes, everybody - (failed - answered)):
                expected = Coverage.PENDING
            else:
                expected = Coverage.IMPOSSIBLE
            assert ensemble_coverage(sizes, bits(answered), bits(failed)) is expected


@every_row("sizes", ALL_SIZES, ids=str)
def test_the_number_that_always_covers_does_and_one_less_may_not(sizes: QuorumSizes) -> None:
    positions = range(sizes.ensemble)
    assert all(is_covered(sizes, frozenset(chosen)) for chosen in combinations(positions, sizes.always_covering))
    assert not all(
        is_covered(sizes, frozenset(chosen)) for chosen in combinations(positions, sizes.always_covering - 1)
    )


@every_row("sizes", [sizes for sizes in ALL_SIZES if sizes.ensemble <= 4], ids=str)
def test_the_order_of_answers_does_not_matter_and_a_covered_ensemble_stays_covered(sizes: QuorumSizes) -> None:
    for kinds in product((True, False), repeat=sizes.ensemble):
        answered = frozenset(position for position, is_answer in enumerate(kinds) if is_answer)
        for order in permutations(range(sizes.ensemble)):
            coverage = EnsembleCoverage(sizes)
            states = [coverage.on_answer(p) if kinds[p] else coverage.on_failure(p) for p in order]
            expected = Coverage.COVERED if is_covered(sizes, answered) else Coverage.IMPOSSIBLE
            assert states[-1] is expected
            decided = [state for state in states if state is not Coverage.PENDING]
            assert set(decided) == {expected}


def test_an_answer_after_a_failure_counts_and_a_failure_after_an_answer_does_not() -> None:
    coverage = EnsembleCoverage(QuorumSizes(1, 1, 1))
    assert coverage.on_failure(0) is Coverage.IMPOSSIBLE
    assert coverage.on_answer(0) is Coverage.COVERED
    assert coverage.on_failure(0) is Coverage.COVERED
    assert coverage.state is Coverage.COVERED


def test_fewer_answers_than_the_number_that_always_covers_may_do() -> None:
    coverage = EnsembleCoverage(QuorumSizes(5, 2, 2))
    assert coverage.on_answer(0) is Coverage.PENDING
    assert coverage.on_answer(2) is Coverage.PENDING
    assert coverage.on_answer(4) is Coverage.COVERED  # 3 of the 4 that always do.


def test_no_such_entry_and_no_such_ledger_are_answers_to_a_fence() -> None:
    assert meaning_of(Code.ENOLEDGER) is Meaning.ABSENT
    assert meaning_of(Code.ENOENTRY) is Meaning.ABSENT


@pytest.mark.parametrize(
    "code", [code for code in Code if code not in (Code.EOK, Code.ENOENTRY, Code.ENOLEDGER)], ids=lambda code: code.name
)
def test_no_other_code_is_an_answer(code: Code) -> None:
    assert meaning_of(code) is Meaning.NOTHING


# --- one entry --------------------------------------------------------------------------------------------------------


def may_have_been_acknowledged(sizes: QuorumSizes, entry_id: int, absent: frozenset[int]) -> bool:
    """Some Qa bookies of the write set exist of which none has said that it lacks the entry."""
    members = sorted(holders(sizes, entry_id))
    return any(not absent.intersection(acked) for acked in combinations(members, sizes.ack))


@every_row("sizes", ALL_SIZES, ids=str)
def test_an_entry_is_absent_when_no_choice_of_holders_can_have_acknowledged_it(sizes: QuorumSizes) -> None:
    for entry_id in range(sizes.ensemble):
        members = holders(sizes, entry_id)
        for absent in subsets(sorted(members)):
            for others in subsets(sorted(members - absent)):
                if not may_have_been_acknowledged(sizes, entry_id, absent):
                    expected = Coverage.COVERED
                elif not may_have_been_acknowledged(sizes, entry_id, members - others):
                    expected = Coverage.PENDING
                else:
                    expected = Coverage.IMPOSSIBLE
                assert absence_coverage(sizes, len(absent), len(others)) is expected


@every_row("sizes", ALL_SIZES, ids=str)
def test_a_recovery_read_decides_by_what_was_heard_so_far(sizes: QuorumSizes) -> None:
    """Every assignment of present, absent, failed or unheard to the write set; positives come last."""
    entry_id = sizes.ensemble + 1
    members = write_set(sizes.ensemble, sizes.write, entry_id)
    for heard in product((*Meaning, None), repeat=sizes.write):
        read = RecoveryRead(sizes, entry_id)
        told = sorted(
            ((position, meaning) for position, meaning in zip(members, heard, strict=True) if meaning is not None),
            key=lambda item: item[1] is Meaning.PRESENT,
        )
        for position, meaning in told:
            read.on_answer(position, meaning)
        absent = frozenset(position for position, meaning in told if meaning is Meaning.ABSENT)
        if not may_have_been_acknowledged(sizes, entry_id, absent):
            expected = Recovered.ABSENT  # Before a positive came: then that is too late.
        elif len([meaning for _, meaning in told if meaning is not Meaning.PRESENT]) == sizes.write:
            expected = Recovered.UNKNOWN
        else:
            expected = Recovered.FOUND if Meaning.PRESENT in heard else Recovered.PENDING
        assert read.decision is expected


@every_row("sizes", ALL_SIZES, ids=str)
def test_an_acknowledged_entry_is_never_decided_to_be_absent(sizes: QuorumSizes) -> None:
    """In any order of answers: Qa bookies have it and say so or fail, the others say no or fail."""
    members = write_set(sizes.ensemble, sizes.write, 0)
    has_it, lacks_it = (Meaning.PRESENT, Meaning.NOTHING), (Meaning.ABSENT, Meaning.NOTHING)
    for acked in combinations(members, sizes.ack):
        for answers in product(*(has_it if position in acked else lacks_it for position in members)):
            for told_last in members:  # Orders matter only by whether the decisive one comes late.
                order = sorted(
                    members, key=lambda position: (answers[position] is Meaning.PRESENT, position == told_last)
                )
                read = RecoveryRead(sizes, 0)
                for position in order:
                    assert read.on_answer(position, answers[position]) is not Recovered.ABSENT


@every_row("sizes", ALL_SIZES, ids=str)
def test_one_positive_is_enough_whatever_else_is_missing(sizes: QuorumSizes) -> None:
    for position in write_set(sizes.ensemble, sizes.write, 5):
        assert RecoveryRead(sizes, 5).on_answer(position, Meaning.PRESENT) is Recovered.FOUND


def test_the_first_decision_stands() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 2), 0)
    read.on_answer(0, Meaning.ABSENT)
    assert read.on_answer(1, Meaning.ABSENT) is Recovered.ABSENT
    assert read.on_answer(2, Meaning.PRESENT) is Recovered.ABSENT


def test_a_repeated_no_counts_once() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 2), 0)
    read.on_answer(0, Meaning.ABSENT)
    assert read.on_answer(0, Meaning.ABSENT) is Recovered.PENDING


def test_a_failed_bookie_that_answers_after_all_is_heard() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 2), 0)
    read.on_answer(0, Meaning.NOTHING)
    read.on_answer(0, Meaning.ABSENT)
    assert read.on_answer(1, Meaning.ABSENT) is Recovered.ABSENT


def test_a_failed_bookie_that_answers_after_all_is_not_counted_as_lost_too() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 1), 0)
    read.on_answer(0, Meaning.NOTHING)
    read.on_answer(0, Meaning.ABSENT)
    assert read.on_answer(1, Meaning.NOTHING) is Recovered.PENDING
    assert read.on_answer(2, Meaning.PRESENT) is Recovered.FOUND


def test_a_no_is_not_taken_back_by_a_later_failure() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 2), 0)
    read.on_answer(0, Meaning.ABSENT)
    read.on_answer(0, Meaning.NOTHING)
    assert read.on_answer(1, Meaning.ABSENT) is Recovered.ABSENT


def test_failures_alone_never_end_a_ledger() -> None:
    read = RecoveryRead(QuorumSizes(3, 3, 2), 0)
    read.on_answer(0, Meaning.NOTHING)
    read.on_answer(1, Meaning.ABSENT)
    assert read.decision is Recovered.PENDING
    assert read.on_answer(2, Meaning.NOTHING) is Recovered.UNKNOWN


def test_a_bookie_outside_of_the_write_set_has_no_say() -> None:
    with pytest.raises(AssertionError, match="not in the entry's write set"):
        RecoveryRead(QuorumSizes(4, 2, 1), 0).on_answer(2, Meaning.ABSENT)
