"""Every replica is in exactly one range."""

from __future__ import annotations

from collections import Counter

import pytest

from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.ledger.channels.answers import Answer
from magnetar.ledger.channels.answers import Finding as Said
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata, LedgerState
from magnetar.quorum.sizes import each_held_entry, write_set
from magnetar.spark.pipelines.replicas import Finding, What, bookie_of, findings_of, replica_ranges
from magnetar.wire.bookkeeper.digests import DigestType


def ledger(ensemble: int, quorum: int, starts: tuple[int, ...] = (0,), last: int = -1) -> LedgerMetadata:
    """The position at which a bookie sits is the last digit of its name, its fragment the first."""
    return LedgerMetadata(
        ledger_id=LedgerId(9),
        ensemble_size=ensemble,
        write_quorum=quorum,
        ack_quorum=quorum,
        fragments=tuple(
            Fragment(EntryId(start), tuple(BookieId(f"{number}:{position}") for position in range(ensemble)))
            for number, start in enumerate(starts)
        ),
        state=LedgerState.OPEN if last < 0 else LedgerState.CLOSED,
        last_entry_id=EntryId(last),
        length=0 if last < 0 else (last + 1) * 100,
        digest_type=DigestType.CRC32C,
        password=b"",
    )


@pytest.mark.parametrize(("ensemble", "quorum"), [(1, 1), (3, 3), (3, 2), (5, 2)])
@pytest.mark.parametrize("starts", [(0,), (0, 7), (0, 1, 30)])
@pytest.mark.parametrize("range_bytes", [1, 500, 10**9])
def test_every_replica_is_in_one_range_at_its_own_bookie(
    ensemble: int, quorum: int, starts: tuple[int, ...], range_bytes: int
) -> None:
    metadata = ledger(ensemble, quorum, starts, last=29)
    found: Counter[tuple[int, str]] = Counter()
    for wanted in replica_ranges(metadata, 29, range_bytes):
        held = list(each_held_entry(ensemble, quorum, wanted.position, wanted.first_entry, wanted.last_entry))
        assert len(held) == wanted.entries
        assert len({metadata.fragment_of(EntryId(entry)) for entry in held}) == 1
        found.update((entry, bookie_of(metadata, wanted.position, entry)) for entry in held)
    expected = Counter(
        (entry, metadata.fragment_of(EntryId(entry)).ensemble[position])
        for entry in range(30)
        for position in write_set(ensemble, quorum, entry)
    )
    assert found == expected


def test_ranges_are_of_the_size_that_was_asked_for() -> None:
    ranges = list(replica_ranges(ledger(1, 1, last=99), 99, range_bytes=1_000))
    assert [wanted.size_bytes for wanted in ranges] == [1_000] * 10


def test_a_ledger_that_is_written_is_planned_up_to_the_last_confirmed_entry() -> None:
    assert [wanted.last_entry for wanted in replica_ranges(ledger(2, 2), 4)] == [4, 4]
    assert list(replica_ranges(ledger(2, 2), -1)) == []
    assert list(replica_ranges(ledger(2, 2, starts=(0, 5)), 4)) == list(replica_ranges(ledger(2, 2), 4))


def test_neighbours_in_the_same_state_are_one_finding() -> None:
    a, b = BookieId("a"), BookieId("b")
    absent, damaged = Answer(Said.ABSENT), Answer(Said.DAMAGED, why="digest")
    suspects = {1: (a, absent), 2: (a, absent), 3: (b, absent), 5: (b, absent), 6: (b, damaged)}
    assert list(findings_of(9, suspects)) == [
        Finding(9, 1, 2, "a", What.MISSING, 2),
        Finding(9, 3, 3, "b", What.MISSING, 1),
        Finding(9, 5, 5, "b", What.MISSING, 1),
        Finding(9, 6, 6, "b", What.DAMAGED, 1, why="digest"),
    ]


def test_only_what_must_be_made_again_is_a_fault() -> None:
    assert [what for what in What if what.is_fault] == [What.MISSING, What.DAMAGED, What.LIMBO]
