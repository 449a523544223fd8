"""`magnetar standalone`: a broker, a bookie and their metadata in one process, kept in one directory.

One directory: `metadata.db` (SQLite) and `bookie/` (journal and ledgers). The broker reaches its bookie without a
socket; the bookie listens on a loopback port of its own as well, for readers that go past the broker.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.logs import setup_server_log
from magnetar.cli.node import serve
from magnetar.cli.options import ConfigFile, Settings, load_effective
from magnetar.config.bookie import NO_HTTP
from magnetar.config.load import Assignment, Effective
from magnetar.config.root import Config
from magnetar.errors import ArgumentError
from magnetar.runtime.event_loop import run

DEFAULT_DIRECTORY = "magnetar-data"
DEFAULT_HTTP_PORT = 8080
_OWN, _EXISTING = "own", "existing"

app = typer.Typer(help="Run a broker, a bookie and their metadata in one process.")


@app.callback(invoke_without_command=True)
def standalone(
    directory: Annotated[str, typer.Option("--dir", metavar="D", help="Where everything is kept.")] = DEFAULT_DIRECTORY,
    port: Annotated[int | None, typer.Option("--port", help="Where clients connect. 0: any that is free.")] = None,
    http_port: Annotated[
        int, typer.Option("--http-port", help="Lookup, admin and metrics. 0: any that is free.")
    ] = DEFAULT_HTTP_PORT,
    metadata: Annotated[
        str | None, typer.Option("--metadata", metavar="URL", help="Another store than the embedded one: zk://…")
    ] = None,
    bookies: Annotated[
        str, typer.Option("--bookies", metavar="own|existing", help="Run one, or use those that are registered.")
    ] = _OWN,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run until a signal ends it; prints one JSON line when it is ready."""
    if bookies not in (_OWN, _EXISTING):
        raise ArgumentError(f"--bookies is {_OWN} or {_EXISTING}, not {bookies!r}")
    if bookies == _EXISTING and metadata is None:
        raise ArgumentError("--bookies existing: say where they are registered, with --metadata zk://host:2181")
    if not directory:
        raise ArgumentError("--dir is empty: say where everything is to be kept")
    effective = _effective(directory, port, metadata, config, settings)
    setup_server_log(effective)
    has_bookie = bookies == _OWN
    node = _for_one_bookie(effective) if has_bookie else effective.config
    run(lambda: serve(node, http_port, has_bookie=has_bookie))


def _effective(
    directory: str, port: int | None, metadata: str | None, config: Path | None, settings: list[str] | None
) -> Effective:
    flags = [
        Assignment("metadata.url", metadata or f"sqlite:{Path(directory, 'metadata.db')}", "--metadata"),
        Assignment("bookie.dir", str(Path(directory, "bookie")), "--dir"),
    ]
    if port is not None:
        flags.append(Assignment("pulsar.port", str(port), "--port"))
    return load_effective(config, settings, flags=flags)


def _for_one_bookie(effective: Effective) -> Config:
    """Quorums that one bookie can be, and its port of the system's choice, unless somebody has set them."""
    config, chosen = effective.config, effective.origins
    topic = config.topic
    if not any(f"topic.{name}" in chosen for name in ("ensemble_size", "write_quorum", "ack_quorum")):
        topic = dataclasses.replace(topic, ensemble_size=1, write_quorum=1, ack_quorum=1)
    bookie = dataclasses.replace(
        config.bookie, port=config.bookie.port if "bookie.port" in chosen else 0, http_port=NO_HTTP
    )
    return dataclasses.replace(config, bookie=bookie, topic=topic)
