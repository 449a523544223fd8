"""Places in a topic as people name them."""

from __future__ import annotations

import pytest

from magnetar.errors import InvalidCursorPositionError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.topic.seek_targets import (
    AtIndex,
    AtMessage,
    AtTime,
    MessagesAgo,
    SeekPosition,
    SeekTarget,
    TimeAgo,
    find_seek_position,
    parse_seek_target,
)
from tests.rows import every_row

NOW_MS = 1_000_000


@every_row(
    ("text", "place"),
    [
        ("earliest", AtMessage(EARLIEST)),
        (" latest ", AtMessage(LATEST)),
        ("12:34", AtMessage(Position(12, 34))),
        ("12:34:-1", AtMessage(Position(12, 34))),
        ("12:34:-1:5", AtMessage(Position(12, 34), 5)),
        ("-1:-1", AtMessage(EARLIEST)),
        ("-1000", MessagesAgo(1000)),
        ("-0", MessagesAgo(0)),
        ("-10m", TimeAgo(600_000)),
        ("-2h30m", TimeAgo(9_000_000)),
        ("-1w1d", TimeAgo(8 * 86_400_000)),
        ("-500ms", TimeAgo(500)),
        ("-5s", TimeAgo(5_000)),
        ("2026-01-31T10:00:00Z", AtTime(1_769_853_600_000)),
        ("2026-01-31T10:00:00", AtTime(1_769_853_600_000)),
        ("2026-01-31T11:00:00.250+01:00", AtTime(1_769_853_600_250)),
        ("2026-01-31", AtTime(1_769_817_600_000)),
        ("time:1769853600000", AtTime(1_769_853_600_000)),
        ("index:42", AtIndex(42)),
    ],
)
def test_a_place_is_understood(text: str, place: SeekTarget) -> None:
    assert parse_seek_target(text) == place


@every_row(
    "text", ["", "-", "10m", "-10x", "-m", "12:", "12:34:5:6:7", "index:-1", "yesterday", "9" * 10_000, "-" + "9" * 500]
)
def test_what_is_no_place_is_refused_with_what_is_one(text: str) -> None:
    with pytest.raises(InvalidCursorPositionError, match="earliest, latest, a message id") as caught:
        parse_seek_target(text)
    assert len(str(caught.value)) < 300


class Log:
    """Ledgers 1 and 2 with five entries each; every entry is a batch of four and was published 1 s after the last."""

    def __init__(self) -> None:
        self.chain = LedgerChain()
        for ledger_id in (1, 2):
            self.chain.begin(ledger_id)
            self.chain.grow(5, 50)
        self.next_confirmed_index = 40

    def _nth(self, number: int) -> Position:
        return self.chain.position_after(EARLIEST, number + 1) if number < 10 else self.chain.end

    async def position_at_time(self, publish_ms: int) -> Position:
        return self._nth(-(-publish_ms // 1000))

    async def position_at_index(self, index: int) -> Position:
        return self._nth(index // 4)

    async def index_of(self, position: Position) -> int:
        return 4 * self.chain.entries_between(EARLIEST, self.chain.previous_position(position))


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("earliest", SeekPosition(EARLIEST)),
        ("latest", SeekPosition(LATEST)),
        ("1:3", SeekPosition(Position(1, 3))),
        ("1:3:-1:2", SeekPosition(Position(1, 3), 2, 4)),
        ("1:3:-1:0", SeekPosition(Position(1, 3))),
        ("1:4:-1:4", SeekPosition(Position(2, 0))),
        ("2:4:-1:9", SeekPosition(Position(2, 5))),
        ("77:3:-1:2", SeekPosition(Position(77, 3))),
        ("-8", SeekPosition(Position(2, 3))),
        ("-5", SeekPosition(Position(2, 3), 3, 4)),
        ("-1", SeekPosition(Position(2, 4), 3, 4)),
        ("-0", SeekPosition(LATEST)),
        ("-99999", SeekPosition(Position(1, 0))),
        ("index:0", SeekPosition(Position(1, 0))),
        ("index:21", SeekPosition(Position(2, 0), 1, 4)),
        ("index:40", SeekPosition(LATEST)),
        ("time:4500", SeekPosition(Position(2, 0))),
        ("-996s", SeekPosition(Position(1, 4))),
        ("-99d", SeekPosition(Position(1, 0))),
        ("-1s", SeekPosition(Position(2, 5))),
    ],
)
async def test_a_place_is_found_in_the_log(text: str, found: SeekPosition) -> None:
    assert await find_seek_position(parse_seek_target(text), Log(), NOW_MS) == found


def test_messages_of_the_batch_before_the_place_are_acknowledged() -> None:
    assert SeekPosition(Position(1, 3), 2, 4).still_unacked == [0b1100]
    assert SeekPosition(Position(1, 3)).still_unacked is None
