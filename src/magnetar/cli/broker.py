"""`magnetar broker`: runs a broker in the foreground, on bookies and a metadata store that run elsewhere."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.cli.logs import setup_server_log
from magnetar.cli.options import ConfigFile, Settings, load_effective
from magnetar.cli.serve import serve
from magnetar.config.load import Assignment
from magnetar.runtime.event_loop import run

DEFAULT_HTTP_PORT = 8080

app = typer.Typer(
    help="Run a broker until it gets a signal. Its bookies and metadata store run elsewhere. It prints one JSON line "
    "when it is ready."
)


@app.callback(invoke_without_command=True)
def broker(
    metadata: Annotated[
        str | None,
        typer.Option(
            "--metadata",
            metavar="URL",
            help="URL of the metadata store: sqlite:PATH or zk://host:2181,host:2181/chroot. Default: metadata.url.",
        ),
    ] = None,
    port: Annotated[
        int | None, typer.Option("--port", help="TCP port for Pulsar clients. 0: any free port. Default: pulsar.port.")
    ] = None,
    http_port: Annotated[
        int,
        typer.Option("--http-port", help="TCP port for the admin interface, lookups and metrics. 0: any free port."),
    ] = DEFAULT_HTTP_PORT,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a broker until it gets a signal. It prints one JSON line when it is ready."""
    given = {"metadata.url": (metadata, "--metadata"), "pulsar.port": (port, "--port")}
    flags = [Assignment(key, str(value), name) for key, (value, name) in given.items() if value is not None]
    effective = load_effective(config, settings, flags=flags)
    setup_server_log(effective)
    run(lambda: serve(effective.config, http_port, has_bookie=False))
