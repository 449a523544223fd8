"""What the ledger part reads from a writer that was killed, and the bytes that both sides expect in an entry."""

from __future__ import annotations

import struct

import pytest

from interop.ledger.bodies import body
from interop.ledger.doomed import parse_acknowledged


def test_the_last_whole_line_of_each_ledger_is_what_was_acknowledged() -> None:
    assert parse_acknowledged("7 -1\n8 -1\n7 0\n7 1\n8 0\n7 2") == {7: 1, 8: 0}


def test_nothing_was_acknowledged_before_the_first_line() -> None:
    assert parse_acknowledged("") == {}
    assert parse_acknowledged("7 -") == {}


@pytest.mark.parametrize("output", ["7 0\n", "7 -1\n7 1\n", "7 -1\n7 0\n7 0\n"])
def test_acknowledgements_out_of_order_are_found(output: str) -> None:
    with pytest.raises(AssertionError, match="ledger 7"):
        parse_acknowledged(output)


def test_the_bytes_of_an_entry_are_those_of_javas_splittable_random() -> None:
    words = (0xE220A8397B1DCDAF, 0x6E789E6AA1B965F4, 0x06C45D188009454F)  # Its first three numbers from the seed 0.
    assert body(0, 0, 24) == struct.pack("<3Q", *words)
    assert body(0, 0, 10) == body(0, 0, 24)[:10]
    assert body(0, 0, 0) == b""
    assert body(1, 0, 8) == body(0, 1_000_003, 8) != body(0, 0, 8)
