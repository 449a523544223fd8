from __future__ import annotations

import struct
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.availability import AvailabilityEncoder, Group, decode_availability
from tests.rows import every_row
from tests.unit.wire.bookkeeper.samples import golden


def encoded(entry_ids: Iterable[int]) -> bytes:
    encoder = AvailabilityEncoder()
    encoder.add(entry_ids)
    return encoder.encoded()


@pytest.mark.parametrize(
    ("name", "entries"),
    [("none", []), ("one-run", [0, 1, 2, 3]), ("striped", [0, 2, 3, 5, 6, 8, 9, 20])],
)
def test_list_that_apache_made_is_understood(name: str, entries: list[int]) -> None:
    groups = decode_availability(golden()[f"entries/{name}"])
    assert [entry for group in groups for entry in group] == entries


@pytest.mark.parametrize(("name", "entries"), [("none", []), ("one-run", [0, 1, 2, 3])])
def test_list_without_stripes_is_encoded_as_apache_does(name: str, entries: list[int]) -> None:
    assert encoded(entries) == golden()[f"entries/{name}"]


def test_stripes_of_a_large_ledger_take_three_groups() -> None:
    held = [entry for entry in range(30_000) if entry % 3 != 1]
    data = encoded(held)
    assert len(data) == 64 + 3 * 24  # Besides the stripes, the first and the last run are cut short.
    assert [entry for group in decode_availability(data) for entry in group] == held


@given(st.sets(st.integers(0, 60)))
def test_exactly_the_encoded_entries_are_in_the_list(entries: set[int]) -> None:
    groups = decode_availability(encoded(sorted(entries)))
    assert {entry for entry in range(-2, 65) if any(entry in group for group in groups)} == entries
    assert [entry for group in groups for entry in group] == sorted(entries)
    assert sum(group.count for group in groups) == len(entries)


@given(st.sets(st.integers(0, 60)), st.integers(1, 10))
def test_list_that_is_made_bit_by_bit_is_the_same(entries: set[int], step: int) -> None:
    ascending = sorted(entries)
    encoder = AvailabilityEncoder()
    for first in range(0, len(ascending), step):
        encoder.add(ascending[first : first + step])
    assert encoder.encoded() == encoded(ascending)


def test_repeated_entry_counts_once() -> None:
    assert encoded([4, 4, 5, 9, 9]) == encoded([4, 5, 9])


def test_entries_that_do_not_ascend_are_a_bug_of_the_caller() -> None:
    with pytest.raises(AssertionError, match="ascend"):
        encoded([5, 2])


def test_gap_too_wide_for_the_format_begins_another_group() -> None:
    entries = [0, 2**40, 2**62]
    assert [entry for group in decode_availability(encoded(entries)) for entry in group] == entries


def data_of(*groups: tuple[int, int, int, int], version: int = 0, count: int | None = None) -> bytes:
    packed = b"".join(struct.pack(">qqii", *group) for group in groups)
    return struct.pack(">ii56x", version, len(groups) if count is None else count) + packed


@every_row(
    "data",
    [
        b"",
        data_of()[:63],
        data_of(version=1),
        data_of(count=-1),
        data_of(count=1),
        data_of((0, 0, 1, 0), count=2**31 - 1),
        data_of((-1, 0, 1, 1)),
        data_of((5, 4, 1, 1)),
        data_of((0, 0, 0, 0)),
        data_of((0, 0, -1, 0)),
        data_of((0, 9, 1, 0)),
        data_of((0, 9, 1, -3)),
        data_of((0, 9, 4, 3)),
        data_of((0, 10, 1, 3)),
        data_of((0, 9, 1, 3), (9, 9, 1, 0)),
    ],
)
def test_impossible_list_is_an_error_of_the_peer(data: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decode_availability(data)


def test_group_of_astronomical_size_costs_nothing_to_decode() -> None:
    (group,) = decode_availability(data_of((0, 2**62, 1, 2)))
    assert group == Group(0, 2**62, 1, 2)
    assert group.count == 2**61 + 1
    assert 2**61 in group
    assert 2**61 + 1 not in group
