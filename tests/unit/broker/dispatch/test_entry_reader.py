"""Reading for a subscription: whatever is kept from an earlier read, nothing between is skipped."""

from __future__ import annotations

from typing import Any, cast

from magnetar.broker.dispatch.entry_reader import EntryReader
from magnetar.config.dispatch import DispatchConfig
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position

ENTRIES = [LogEntry(Position(1, at), b"", 1) for at in range(10)]


class _Log:
    def read_nowait(self, first: Position, entries_max: int, bytes_max: int) -> list[LogEntry]:
        return ENTRIES[first.entry_id : first.entry_id + entries_max]


def test_what_was_given_back_late_is_read_again_and_not_skipped() -> None:
    reader = EntryReader(cast("Any", _Log()), DispatchConfig(), lambda: None)
    reader.give_back(ENTRIES, Position(1, 2))
    taken = reader.get(Position(1, 2), 3, 1_000)  # Entries 2 to 4; the reader keeps those from 5 on.
    assert taken == ENTRIES[2:5]
    reader.give_back(taken, Position(1, 3))  # Only one could be handed out, and there is no room to keep the others.
    assert reader.get(Position(1, 3), 3, 1_000) == ENTRIES[3:6]


def test_what_is_given_back_is_kept_without_gaps_from_the_first_that_was_not_handed_out() -> None:
    reader = EntryReader(cast("Any", _Log()), DispatchConfig(), lambda: None)
    reader.give_back(ENTRIES[:6], Position(1, 3))
    assert reader.get(Position(1, 3), 10, 1_000) == ENTRIES[3:6]
