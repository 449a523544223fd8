"""Lines of a pipe: none is overlooked, and no wait is without an end."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import IO

import pytest

from interop.spark.lines import Lines


@pytest.fixture
def pipe() -> Iterator[tuple[Lines, IO[bytes]]]:
    reading, writing = os.pipe()
    with os.fdopen(reading, "rb") as read_end, os.fdopen(writing, "wb", buffering=0) as write_end:
        yield Lines(read_end), write_end


def test_two_lines_that_come_at_once_are_there_one_after_the_other(pipe: tuple[Lines, IO[bytes]]) -> None:
    lines, child = pipe
    child.write(b"first\nsecond\n")
    assert lines.next(0) == "first"
    assert lines.is_next_here()
    assert lines.next(0) == "second"
    assert not lines.is_next_here()


def test_half_a_line_is_none_until_the_rest_of_it_comes(pipe: tuple[Lines, IO[bytes]]) -> None:
    lines, child = pipe
    child.write(b'{"target": ')
    assert not lines.is_next_here()
    assert lines.next(0) is None
    child.write(b"1}\n")
    assert lines.is_next_here()
    assert lines.next(0) == '{"target": 1}'


def test_behind_the_last_line_of_a_child_that_has_ended_nobody_waits(pipe: tuple[Lines, IO[bytes]]) -> None:
    lines, child = pipe
    child.write(b"last\n")
    child.close()
    assert lines.next(60) == "last"
    assert lines.is_next_here()
    assert lines.next(60) is None
