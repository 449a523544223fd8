"""A journal file seen through a window."""

from __future__ import annotations

from typing import Any

import pytest

from magnetar.storage.journal import replay
from magnetar.storage.journal.replay import Window

PATTERN = b"magic"


class CountedFile:
    """As much of a file as a window needs; says how often it was read."""

    path = "journal/1.journal"

    def __init__(self, content: bytes) -> None:
        self.content = content
        self.size = len(content)
        self.reads = 0

    async def read(self, offset: int, length: int) -> bytes:
        self.reads += 1
        return self.content[offset : offset + length]


async def all_places(window: Window, offset: int = 0) -> list[int]:
    found = []
    while (place := await window.find(PATTERN, offset)) is not None:
        found.append(place)
        offset = place + 1
    return found


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replay, "PIECE_BYTES", 64)


def window_on(content: bytes) -> tuple[Window, CountedFile]:
    file: Any = CountedFile(content)
    return Window(file), file


async def test_old_groups_in_a_file_that_is_written_again_do_not_cost_a_read_each() -> None:
    window, file = window_on(PATTERN * 1000)
    assert await all_places(window) == list(range(0, 5000, 5))
    assert file.reads <= 5000 // (64 - len(PATTERN)) + 2


@pytest.mark.parametrize("shift", range(12))
async def test_a_pattern_over_the_border_of_two_pieces_is_found(shift: int) -> None:
    content = bytes(54 + shift) + PATTERN + bytes(100)
    window, _ = window_on(content)
    assert await all_places(window) == [54 + shift]


async def test_what_was_read_elsewhere_meanwhile_does_not_matter() -> None:
    content = bytes(10) + PATTERN + bytes(200) + PATTERN
    window, _ = window_on(content)
    assert await window.find(PATTERN, 0) == 10
    await window.at(150, 40)
    assert await window.find(PATTERN, 5) == 10
    assert await window.find(PATTERN, 11) == 215
    assert await window.find(PATTERN, 216) is None
