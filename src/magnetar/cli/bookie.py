"""`magnetar bookie`: runs a storage node in the foreground."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated

import typer

from magnetar.bookie.bookie import Bookie
from magnetar.cli.bookie_cookie import cookie_app, format_bookie
from magnetar.cli.bookie_inspect import entrylog_app, ledger_app
from magnetar.cli.bookie_journal import journal_app
from magnetar.cli.bookie_limbo import put_in_limbo
from magnetar.cli.bookie_repair import index_app, readonly_app
from magnetar.cli.logs import setup_server_log
from magnetar.cli.options import ConfigFile, Settings, load_effective
from magnetar.config.load import Assignment
from magnetar.config.root import Config
from magnetar.errors import ArgumentError, MagnetarError
from magnetar.metadata.open import open_store
from magnetar.runtime.collector import expect_long_life
from magnetar.runtime.event_loop import run
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.system import SystemRuntime

app = typer.Typer(help="Run a storage node, and look after it.")
app.add_typer(cookie_app, name="cookie")
app.add_typer(journal_app, name="journal")
app.add_typer(entrylog_app, name="entrylog")
app.add_typer(ledger_app, name="ledger")
app.add_typer(index_app, name="index")
app.add_typer(readonly_app, name="readonly")
app.command("format")(format_bookie)
app.command("limbo")(put_in_limbo)


@app.callback(invoke_without_command=True)
def bookie(
    context: typer.Context,
    metadata: Annotated[str | None, typer.Option("--metadata", metavar="URL", help="The metadata store.")] = None,
    directory: Annotated[
        str | None, typer.Option("--dir", metavar="D", help="Where the bookie keeps its data.")
    ] = None,
    port: Annotated[int | None, typer.Option("--port", help="0: any that is free, kept for the next start.")] = None,
    bookie_id: Annotated[str | None, typer.Option("--id", help="A fixed id instead of host:port.")] = None,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a bookie until a signal ends it; prints one JSON line when it is ready."""
    given = {"metadata.url": metadata, "bookie.dir": directory, "bookie.port": port, "bookie.bookie_id": bookie_id}
    names = {"metadata.url": "--metadata", "bookie.dir": "--dir", "bookie.port": "--port", "bookie.bookie_id": "--id"}
    flags = [Assignment(key, str(value), names[key]) for key, value in given.items() if value is not None]
    if (subcommand := context.invoked_subcommand) is not None:
        if flags or config or settings:  # They would be lost, and the command work on another bookie.
            raise ArgumentError(f"options go behind the command: magnetar bookie {subcommand} ... --dir D")
        return
    effective = load_effective(config, settings, flags=flags)
    setup_server_log(effective)
    run(lambda: _serve(effective.config))


async def _serve(config: Config) -> None:
    runtime, metrics = SystemRuntime(), Metrics()
    async with await open_store(config, runtime, metrics) as store:
        bookie = await Bookie.open(config, runtime, store, metrics, base=os.getcwd())  # noqa: PTH109
        try:
            ready = {"ready": True, "bookie_id": bookie.bookie_id, "port": bookie.port, "http_port": bookie.http_port}
            print(json.dumps(ready), flush=True)
            expect_long_life()
            error = await bookie.wait_failed()
            raise MagnetarError(f"bookie {bookie.bookie_id} has stopped: {error}")
        finally:
            await asyncio.shield(bookie.aclose())
