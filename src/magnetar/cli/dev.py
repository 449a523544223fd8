"""`magnetar dev`: servers for development on this machine, ended when their owner ends.

`zookeeper` runs in the foreground until SIGTERM, SIGINT or the end of the process that started it; with
`--until-stdin-closes` also until its standard input is closed. The kernel kills the servers when the command itself is
killed, so nothing is left behind in any case. `cluster` runs a whole cluster in the same way; the other commands reach
it from another terminal (dev_cluster.py).
"""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.dev_cluster import Control, ask, listening, obey
from magnetar.cli.options import Settings
from magnetar.cli.output import AsJson, print_json, print_table
from magnetar.config.load import Assignment
from magnetar.errors import ArgumentError, ProcessFailedError
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
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
    owner, ports = os.getppid(), range(port, port + servers) if port else ()
    with (
        _until_signalled(),
        _log_tail_on_stderr(),
        _place(directory) as place,
        ZooKeeperEnsemble(place, ports=ports) if servers == 3 else ZooKeeperServer(place, port=port) as running,
    ):
        members = running.servers if isinstance(running, ZooKeeperEnsemble) else [running]
        _announce(running.url, members)
        _wait_for_the_end(owner, members, until_stdin_closes)


# --- a cluster --------------------------------------------------------------------------------------------------------

_DEFAULT_CLUSTER: Final = Path("magnetar-cluster")
_DEFAULT_PORT, _DEFAULT_HTTP_PORT = 6_650, 8_080
_OF_BROKERS: Final = ("broker", "topic", "cursor", "dispatch", "defaults", "schemas", "upkeep", "pulsar", "http")
_OF_BOOKIES: Final = ("bookie", "journal", "storage")
_MEMBERS_MAX: Final = 50
_KEPT: Final = "broker.inactive_topics_delete"

Directory: TypeAlias = Annotated[
    Path, typer.Option("--dir", metavar="DIR", help="Directory of the cluster: its data, its logs, its ports.")
]
MemberArgument: TypeAlias = Annotated[
    str, typer.Argument(metavar="MEMBER", help="Name of a member, such as broker-1 or bookie-2.")
]


@app.command()
def cluster(
    brokers: Annotated[int, typer.Option(min=1, max=_MEMBERS_MAX, metavar="N", help="Number of brokers.")] = 3,
    bookies: Annotated[int, typer.Option(min=1, max=_MEMBERS_MAX, metavar="N", help="Number of bookies.")] = 4,
    zookeepers: Annotated[
        int, typer.Option("--zookeepers", metavar="N", help="Number of ZooKeeper servers: 1 or 3.")
    ] = 1,
    directory: Directory = _DEFAULT_CLUSTER,
    port: Annotated[
        int,
        typer.Option(
            min=0,
            max=65_000,
            help="TCP port of the first broker for Pulsar clients; the others get the next ports. 0: any free ports.",
        ),
    ] = _DEFAULT_PORT,
    http_port: Annotated[
        int,
        typer.Option(
            "--http-port",
            min=0,
            max=65_000,
            help="TCP port of the first broker's admin interface; the others get the next ports. 0: any free ports.",
        ),
    ] = _DEFAULT_HTTP_PORT,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Run a whole cluster on this machine: real brokers, bookies and ZooKeeper, each a process of its own. Ctrl-C ends
    it, and its data stays. Members can be killed, paused and restarted from another terminal.
    """
    if zookeepers not in (1, 3):
        raise ArgumentError(f"--zookeepers is 1 or 3, not {zookeepers}")
    broker_settings = _settings_for(_OF_BOOKIES, settings)
    if not any(each.startswith(_KEPT) for each in broker_settings):
        broker_settings.append(f"{_KEPT}=false")  # As `standalone` does: a topic still exists the next day.
    if bookies == 1:
        broker_settings[:0] = [f"topic.{name}=1" for name in ("ensemble_size", "write_quorum", "ack_quorum")]
    began = time.monotonic()
    owner = os.getppid()
    made = ProcessCluster(
        directory.absolute(),
        bookies,
        _settings_for(_OF_BROKERS, settings),
        brokers=brokers,
        broker_settings=broker_settings,
        zookeepers=zookeepers,
        port=port,
        http_port=http_port,
    )
    with _until_signalled(), _log_tail_on_stderr(), listening(directory) as listener, made:
        control = Control(made)
        _print_cluster(control.members(), directory, time.monotonic() - began, as_json)
        with _ended_in_order(made):
            obey(listener, control, lambda: os.getppid() != owner)


def _settings_for(others: Sequence[str], settings: Sequence[str] | None) -> list[str]:
    """Those that are not for the other kind of server."""
    return [text for text in settings or () if Assignment.parse(text).path.partition(".")[0] not in others]


@contextlib.contextmanager
def _ended_in_order(made: ProcessCluster) -> Iterator[None]:
    """A person who ends the cluster wants to start it again: brokers hand over, bookies flush."""
    try:
        yield
    finally:
        made.stop()


def _print_cluster(members: Sequence[dict[str, Any]], directory: Path, seconds: float, as_json: bool) -> None:
    if as_json:
        print(json.dumps({"ready": True, "dir": str(directory), "seconds": round(seconds, 1), "members": members}))
    else:
        print(f"The cluster is ready after {seconds:.1f} s. Its data and logs are in {directory}.")
        _print_members(members, as_json=False)
        print("In another terminal: magnetar dev status, kill, stop, pause, resume or restart MEMBER. Ctrl-C ends all.")
    sys.stdout.flush()


def _print_members(members: Sequence[dict[str, Any]], *, as_json: bool) -> None:
    if as_json:
        print_json(members)
        return
    rows = [
        (each["name"], each["state"], each["pid"], each.get("address") or f"{each['url']} {each['admin_url']}")
        for each in members
    ]
    print_table(("member", "state", "pid", "address"), rows)


@app.command()
def status(directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Print the members of a cluster that `magnetar dev cluster` runs, with their states and addresses."""
    _print_members(ask(directory, "status"), as_json=as_json)


@app.command()
def kill(member: MemberArgument, directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """End a member of the cluster at once, as kill -9 does."""
    _print_members(ask(directory, "kill", member), as_json=as_json)


@app.command()
def stop(member: MemberArgument, directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """End a member of the cluster in an orderly way, as SIGTERM does."""
    _print_members(ask(directory, "stop", member), as_json=as_json)


@app.command()
def pause(member: MemberArgument, directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Freeze a member of the cluster (SIGSTOP): its connections stay open, but it does not answer."""
    _print_members(ask(directory, "pause", member), as_json=as_json)


@app.command()
def resume(member: MemberArgument, directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Let a paused member of the cluster continue (SIGCONT)."""
    _print_members(ask(directory, "resume", member), as_json=as_json)


@app.command()
def restart(member: MemberArgument, directory: Directory = _DEFAULT_CLUSTER, as_json: AsJson = False) -> None:
    """Stop a member of the cluster, if it runs, and start it again."""
    _print_members(ask(directory, "restart", member), as_json=as_json)


# --- how a command ends -----------------------------------------------------------------------------------------------


def _announce(url: str, members: Sequence[ZooKeeperServer]) -> None:
    line = {"ready": True, "url": url, "servers": [m.address for m in members], "pids": [m.pid for m in members]}
    print(json.dumps(line), flush=True)


def _wait_for_the_end(owner: int, members: Sequence[ZooKeeperServer], until_stdin_closes: bool) -> None:
    def is_over() -> bool:
        for member in members:
            member.raise_if_ended("it was stopped")
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
def _until_signalled() -> Iterator[None]:
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
