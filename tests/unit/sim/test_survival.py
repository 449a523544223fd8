"""The two ways in which unsynced bytes survive, each by itself."""

from __future__ import annotations

from magnetar.sim.device import Change, Cut, Write, _in_order, _writeback, survived, survived_count
from magnetar.sim.seeds import seeded

PENDING: list[Change] = [Write(2, b"34"), Cut(3), Write(3, b"xyz")]


def test_in_order_a_prefix_survives_and_the_next_write_may_be_torn() -> None:
    found = {bytes(_in_order(bytearray(b"12"), PENDING, seeded(str(seed)))) for seed in range(200)}
    assert found == {b"12", b"123", b"1234", b"123x", b"123xy", b"123xyz"}


def test_writeback_keeps_the_page_of_one_moment_and_the_size_of_another() -> None:
    found = {bytes(_writeback(bytearray(b"12"), PENDING, seeded(str(seed)))) for seed in range(200)}
    assert all(content.startswith(b"12") for content in found)
    assert b"12\0\0\0\0" in found  # The old page under the newest size.
    assert b"12" in found
    assert b"123xyz" in found


def test_writeback_tears_at_sectors_or_pages() -> None:
    pending = [Write(0, b"x" * 8_192)]
    found = [bytes(_writeback(bytearray(), pending, seeded(str(seed)))) for seed in range(100)]
    whole = [content for content in found if len(content) == 8_192]
    assert any(content[:4_096] == bytes(4_096) and content[4_096:] == b"x" * 4_096 for content in whole)
    assert any(content[:512] == bytes(512) and b"x" in content[512:4_096] for content in whole)


def test_nothing_pending_leaves_the_durable_bytes() -> None:
    assert survived(bytearray(b"12"), [], seeded("0")) == b"12"


def test_none_and_all_are_likely_and_everything_between_happens() -> None:
    drawn = [survived_count(4, seeded(str(seed))) for seed in range(400)]
    assert sorted(set(drawn)) == [0, 1, 2, 3, 4]
    assert min(drawn.count(0), drawn.count(4)) > 80
