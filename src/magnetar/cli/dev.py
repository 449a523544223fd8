"""`magnetar dev`: servers for development on this machine, ended when their owner ends.

A command runs in the foreground until SIGTERM, SIGINT or the end of the process that started it; with
`--until-stdin-closes` also until its standard input is closed. The kernel kills the servers when the command itself is
killed, so nothing is left behind in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated

import typer

from magnetar.errors import ArgumentError, ProcessFailedError
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.zookeeper import ZooKeeperEnsemble, ZooKeeperServer

_STDIN_READ_BYTES = 4096
_LOOK_AGAIN_S = 3600.0  # No wait is endless, not even this one: it begins anew.

app = typer.Typer(no_args_is_help=True, help="Run servers for development on this machine.")


@app.callback()
def group() -> None:
    """Run servers for development on this machine."""  # With a callback, a lone command keeps its name.


@app.command()
def zookeeper(
    servers: Annotated[int, typer.Option(help="Number of servers: 1, or 3 for an ensemble.")] = 1,
    directory: Annotated[
        Path | None,
        typer.Option("--dir", help="Directory of the data. Default: a temporary directory that is removed at the end."),
    ] = None,
    port: Annotated[
        int,
        typer.Option(
            min=0, max=65_533, help="TCP port of the first server; the others get the next ports. 0: any free ports."
        ),
    ] = 0,
    until_stdin_closes: Annotated[
        bool, typer.Option("--until-stdin-closes", help="Also exit when standard input is closed.")
    ] = False,
) -> None:
    """Run ZooKeeper servers until the process that started this command ends. It prints one JSON line when they
    are ready.
    """
    if servers not in (1, 3):
        raise ArgumentError(f"--servers is 1 or 3, not {servers}")
    owner = os.getppid()
    with (
        _until_told_to_end(),
        _log_tail_on_stderr(),
        _place(directory) as place,
        ZooKeeperEnsemble(place, port=port) if servers == 3 else ZooKeeperServer(place, port=port) as running,
    ):
        members = running.servers if isinstance(running, ZooKeeperEnsemble) else [running]
        _announce(running.url, members)
        _wait_for_the_end(owner, members, until_stdin_closes)


def _announce(url: str, members: Sequence[ZooKeeperServer]) -> None:
    line = {"ready": True, "url": url, "servers": [m.address for m in members], "pids": [m.pid for m in members]}
    print(json.dumps(line), flush=True)


def _wait_for_the_end(owner: int, members: Sequence[ZooKeeperServer], until_stdin_closes: bool) -> None:
    def is_over() -> bool:
        for member in members:
            member.raise_if_ended("it was told to")
        return os.getppid() != owner or (until_stdin_closes and _stdin_is_closed())

    while True:
        with contextlib.suppress(TimeoutError):
            return wait_for(is_over, what="the end of the owner", timeout=_LOOK_AGAIN_S, every=0.2)


def _stdin_is_closed() -> bool:
    """Reads away what is written there, and says whether the writer has left."""
    if not select.select([0], [], [], 0)[0]:
        return False
    return not os.read(0, _STDIN_READ_BYTES)


class _ToldToEndError(Exception):
    """A signal came."""


@contextlib.contextmanager
def _until_told_to_end() -> Iterator[None]:
    """A signal unwinds the body, wherever it is; further ones are ignored, so that the cleaning up is not disturbed."""
    numbers = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def unwind(_number: int, _frame: object) -> None:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN)
        raise _ToldToEndError

    before = {number: signal.signal(number, unwind) for number in numbers}
    try:
        with contextlib.suppress(_ToldToEndError):
            yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _log_tail_on_stderr() -> Iterator[None]:
    """An error is one line; the end of a server's log, which comes with it, has many and goes before it."""
    try:
        yield
    except ProcessFailedError as error:
        first, _, tail = str(error).partition("\n")
        if tail:
            print(tail, file=sys.stderr)
        raise ProcessFailedError(first) from None


@contextlib.contextmanager
def _place(directory: Path | None) -> Iterator[Path]:
    if directory is not None:
        yield directory.absolute()
        return
    with tempfile.TemporaryDirectory(prefix="magnetar-zookeeper-", ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)
