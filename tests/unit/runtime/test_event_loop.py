"""Running a program: result, errors, and the way a signal stops it. Signals go to processes of their own."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys

import pytest
import uvloop

from magnetar.runtime.event_loop import run

DEADLINE_S = 30

PROGRAM = """
import asyncio
from magnetar.runtime.event_loop import run

async def main():
    print("running", flush=True)
    try:
        {running}
    finally:
        print("stopping", flush=True)
        {stopping}
        print("stopped", flush=True)

print("result", run(main), flush=True)
"""


def test_program_runs_on_uvloop_and_returns_its_result() -> None:
    async def main() -> type[asyncio.AbstractEventLoop]:
        return type(asyncio.get_running_loop())

    assert run(main) is uvloop.Loop


def test_error_of_the_program_travels_on() -> None:
    async def main() -> None:
        raise KeyError("told")

    with pytest.raises(KeyError, match="told"):
        run(main)


def test_cancellation_that_no_signal_asked_for_is_not_a_stop() -> None:
    async def main() -> None:
        raise asyncio.CancelledError

    with pytest.raises(asyncio.CancelledError):
        run(main)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_program_gracefully(number: signal.Signals) -> None:
    with start("await asyncio.sleep(0)") as process:
        assert next_line(process) == "running"
        process.send_signal(number)
        out, err = process.communicate(timeout=DEADLINE_S)
    assert out.split("\n") == ["stopping", "stopped", "result None", ""]
    assert (process.returncode, err) == (0, "")


def test_second_signal_ends_a_program_that_does_not_stop() -> None:
    with start("await asyncio.sleep(3600)") as process:
        assert next_line(process) == "running"
        process.terminate()
        assert next_line(process) == "stopping"
        process.terminate()
        out, _ = process.communicate(timeout=DEADLINE_S)
    assert out == ""
    assert process.returncode == -signal.SIGTERM


def test_second_signal_ends_a_program_whose_output_nobody_reads() -> None:
    """Its loop stands still in a write, so the first one cannot be heard."""
    with start("pass", running='print("." * 10_000_000)') as process:
        assert next_line(process) == "running"
        process.send_signal(signal.SIGINT)  # If the same signal comes twice at once, one may be lost.
        process.send_signal(signal.SIGTERM)
        assert process.wait(timeout=DEADLINE_S) < 0


def start(stopping: str, running: str = "await asyncio.Event().wait()") -> subprocess.Popen[str]:
    command = [sys.executable, "-c", PROGRAM.format(running=running, stopping=stopping)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def next_line(process: subprocess.Popen[str]) -> str:
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")
