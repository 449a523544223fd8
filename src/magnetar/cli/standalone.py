"""`magnetar standalone`: a broker, a bookie and their metadata in one process, kept in one directory.

The directory has `metadata.db` (SQLite) and `bookie/` (journal and ledgers). The broker reaches its bookie without a
socket; the bookie listens on a loopback port of its own as well, for readers that go past the broker. Topics that are
not used are kept; `broker` deletes them after a minute, as Pulsar does.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Annotated

import typer

from magnetar.cli.logs import setup_server_log
from magnetar.cli.options import ConfigFile, Settings, load_effective
from magnetar.cli.serve import serve
from magnetar.config.bookie import NO_HTTP
from magnetar.config.load import Assignment, Effective
from magnetar.config.root import Config
from magnetar.errors import ArgumentError
from magnetar.runtime.event_loop import run

DEFAULT_DIRECTORY = "magnetar-data"
DEFAULT_HTTP_PORT = 8080
_OWN, _EXISTING = "own", "existing"
_INACTIVE = "broker.inactive_topics_delete"

app = typer.Typer(
    help="Run a broker, a bookie and their metadata in one process, until it gets a signal. It prints one JSON line "
    "when it is ready."
)


@app.callback(invoke_without_command=True)
def standalone(
    directory: Annotated[
        str, typer.Option("--dir", metavar="D", help="Directory for the data and metadata.")
    ] = DEFAULT_DIRECTORY,
    port: Annotated[
        int | None, typer.Option("--port", help="TCP port for Pulsar clients. 0: any free port. Default: pulsar.port.")
    ] = None,
    http_port: Annotated[
        int,
        typer.Option("--http-port", help="TCP port for the admin interface, lookups and metrics. 0: any free port."),
    ] = DEFAULT_HTTP_PORT,
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="URL",
            help="URL of another metadata store, such as zk://host:2181. Default: an embedded store in --dir.",
        ),
    ] = None,
    bookies: Annotated[
        str,
        typer.Option(
            "--bookies",
            metavar="own|existing",
            help="Run a bookie in this process (own), or use the bookies registered in the metadata store (existing).",
        ),
    ] = _OWN,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a broker, a bookie and a metadata store in one process until it gets a signal. It prints one JSON
    line when it is ready.
    """
    if bookies not in (_OWN, _EXISTING):
        raise ArgumentError(f"--bookies is {_OWN} or {_EXISTING}, not {bookies!r}")
    if bookies == _EXISTING and metadata is None:
        raise ArgumentError(
            "--bookies existing needs --metadata: give the metadata store of the bookies, such as zk://host:2181"
        )
    if not directory:
        raise ArgumentError("--dir is empty: give a directory for the data")
    effective = _effective(directory, port, metadata, config, settings)
    setup_server_log(effective)
    has_bookie = bookies == _OWN
    node = for_trying(effective)
    node = for_one_bookie(node, effective) if has_bookie else node
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


def for_trying(effective: Effective) -> Config:
    """Turns off the deletion of unused topics, unless the user has set it: a topic still exists the next day."""
    if _INACTIVE in effective.origins:
        return effective.config
    return dataclasses.replace(
        effective.config, broker=dataclasses.replace(effective.config.broker, inactive_topics_delete=False)
    )


def for_one_bookie(config: Config, effective: Effective) -> Config:
    """Quorums that one bookie can be, and a port that the system chooses, unless the user has chosen."""
    chosen = effective.origins
    topic = config.topic
    if not any(f"topic.{name}" in chosen for name in ("ensemble_size", "write_quorum", "ack_quorum")):
        topic = dataclasses.replace(topic, ensemble_size=1, write_quorum=1, ack_quorum=1)
    bookie = dataclasses.replace(
        config.bookie, port=config.bookie.port if "bookie.port" in chosen else 0, http_port=NO_HTTP
    )
    return dataclasses.replace(config, bookie=bookie, topic=topic)
