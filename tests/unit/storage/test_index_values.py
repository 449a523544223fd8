"""Every value of the index comes back as it was, and no flipped bit of it passes."""

from __future__ import annotations

import struct

import pytest
from crc32c import crc32c
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import IndexDamagedError
from magnetar.storage.index.extents import ID_MAX, SPAN, BlockPlace, Extent, decode, encode, extents_of
from magnetar.storage.ledger_flags import LedgerFlags, decode_flags, encode_flags

IDS = st.lists(st.integers(0, 5000) | st.integers(0, ID_MAX), min_size=1, max_size=50, unique=True).map(sorted)
PLACES = st.builds(BlockPlace, st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1), st.integers(0, 2**32 - 1))
FLAGS = st.builds(
    LedgerFlags,
    master_key=st.none() | st.binary(min_size=20, max_size=20),
    fenced=st.booleans(),
    limbo=st.booleans(),
    explicit_lac=st.none() | st.binary(max_size=60),
    deleted_at_ms=st.none() | st.integers(1, 2**63),
)


@given(ledger_id=st.integers(0, ID_MAX), ids=IDS, place=PLACES)
def test_extents_of_a_block_are_short_and_come_back(ledger_id: int, ids: list[int], place: BlockPlace) -> None:
    parts = list(extents_of(ledger_id, ids, place))
    assert [entry for part in parts for entry in part.ids] == ids
    assert all(part.ids[-1] - part.ids[0] < SPAN for part in parts)
    assert [decode(*encode(part)) for part in parts] == parts
    for part in parts:
        assert [entry for entry in range(part.ids[0], part.ids[-1] + 1) if part.holds(entry)] == list(part.ids)


@given(ledger_id=st.integers(0, ID_MAX), flags=FLAGS)
def test_flags_come_back(ledger_id: int, flags: LedgerFlags) -> None:
    assert decode_flags(ledger_id, encode_flags(ledger_id, flags)) == flags


@pytest.mark.parametrize("ids", [range(10, 20), (1, 2, 9)])
def test_every_flipped_bit_of_an_extent_is_found(ids: range | tuple[int, ...]) -> None:
    key, value = encode(Extent(7, ids, BlockPlace(1, 2, 3)))
    for bit in range(len(key + value) * 8):
        damaged = bytearray(key + value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexDamagedError):
            decode(bytes(damaged[: len(key)]), bytes(damaged[len(key) :]))
    for size in range(len(value)):
        with pytest.raises(IndexDamagedError):
            decode(key, value[:size])


def test_every_flipped_bit_of_flags_is_found() -> None:
    value = encode_flags(7, LedgerFlags(master_key=b"k" * 20, explicit_lac=b"lac"))
    for bit in range(len(value) * 8):
        damaged = bytearray(value)
        damaged[bit // 8] ^= 1 << bit % 8
        with pytest.raises(IndexDamagedError, match="ledger 7 have a wrong checksum"):
            decode_flags(7, bytes(damaged))
    for size in range(len(value)):
        with pytest.raises(IndexDamagedError):
            decode_flags(7, value[:size])


def test_flags_of_another_ledger_are_damage() -> None:
    with pytest.raises(IndexDamagedError):
        decode_flags(8, encode_flags(7, LedgerFlags()))


def sealed(key: bytes, body: bytes) -> bytes:
    return body + struct.pack("<I", crc32c(body, crc32c(key)))


def test_sealed_extent_of_a_wrong_length_is_damage() -> None:
    key, value = encode(Extent(7, (1, 2, 9), BlockPlace(3, 4, 5)))
    body = value[:-4]
    for wrong in (body[:-1], body[:-2], body + b"x", body + b"xx"):
        with pytest.raises(IndexDamagedError, match=r"wrong length.*magnetar bookie index rebuild"):
            decode(key, sealed(key, wrong))


def test_sealed_extent_of_nothing_is_damage() -> None:
    key, _ = encode(Extent(7, range(1, 2), BlockPlace(3, 4, 5)))
    with pytest.raises(IndexDamagedError, match="wrong length"):
        decode(key, sealed(key, struct.pack("<IH", 5, 0)))


def test_sealed_flags_that_are_cut_or_too_long_are_damage() -> None:
    body = encode_flags(7, LedgerFlags(master_key=b"k" * 20, explicit_lac=b"lac"))[:-4]
    for wrong in (body[:0], body[:5], body[:11], body[:-1], body + b"x"):
        with pytest.raises(IndexDamagedError, match=r"ledger 7 .*(cut short|wrong length)"):
            decode_flags(7, sealed(struct.pack(">Q", 7), wrong))
