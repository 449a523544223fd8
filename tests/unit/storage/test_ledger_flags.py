"""Flags that exist can be written: a flush never meets one that it cannot encode."""

from __future__ import annotations

import dataclasses

import pytest

from magnetar.storage.ledger_flags import (
    EXPLICIT_LAC_BYTES_MAX,
    KEY_BYTES_MAX,
    NO_FLAGS,
    LedgerFlags,
    decode_flags,
    encode_flags,
)


def test_the_longest_flags_come_back() -> None:
    flags = LedgerFlags(master_key=b"k" * KEY_BYTES_MAX, explicit_lac=b"l" * EXPLICIT_LAC_BYTES_MAX, fenced=True)
    assert decode_flags(7, encode_flags(7, flags)) == flags


@pytest.mark.parametrize(
    "fields", [{"master_key": b"k" * (KEY_BYTES_MAX + 1)}, {"explicit_lac": b"l" * (EXPLICIT_LAC_BYTES_MAX + 1)}]
)
def test_flags_that_could_not_be_written_fail_when_they_are_made_and_not_in_a_flush(fields: dict[str, bytes]) -> None:
    with pytest.raises(AssertionError, match="cannot be stored"):
        dataclasses.replace(NO_FLAGS, **fields)  # type: ignore[arg-type]
