"""What is read from a bookie's process: its ready line and its peak memory. The processes are run by interop."""

from __future__ import annotations

import pytest

from interop.bookies import parse_peak_memory
from interop.magnetar_bookies import parse_ready_line
from magnetar.errors import ProcessFailedError


def test_the_bookie_id_is_taken_from_the_ready_line() -> None:
    assert parse_ready_line('{"ready": true, "bookie_id": "127.0.0.1:3181", "port": 3181}\nmore\n') == "127.0.0.1:3181"


@pytest.mark.parametrize("output", ["", '{"ready": true, "bookie_id": "127.0'])
def test_a_line_that_is_not_there_as_a_whole_is_waited_for(output: str) -> None:
    assert parse_ready_line(output) is None


@pytest.mark.parametrize("line", ["Traceback", "[]", '{"ready": false}', '{"ready": true}', '{"bookie_id": "a"}'])
def test_a_first_line_that_does_not_say_ready_is_an_error_that_shows_it(line: str) -> None:
    with pytest.raises(ProcessFailedError, match="first line"):
        parse_ready_line(f"{line}\n")


def test_the_peak_memory_is_read_in_bytes() -> None:
    assert parse_peak_memory("Name:\tjava\nVmPeak:\t  999 kB\nVmHWM:\t  2048 kB\nVmRSS:\t 1 kB\n") == 2 * 2**20


def test_a_process_that_has_ended_has_no_peak_memory() -> None:
    with pytest.raises(ValueError, match="ended"):
        parse_peak_memory("Name:\tjava\nState:\tZ (zombie)\n")
