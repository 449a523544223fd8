"""`magnetar bookie`: runs a storage node in the foreground."""

from __future__ import annotations

import asyncio
import json
import os
from typing import Annotated

import typer

from magnetar.autorecovery.roster import Roster
from magnetar.autorecovery.service import AutoRecovery
from magnetar.bookie.bookie import Bookie
from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.cli.bookie.decommission import decommission
from magnetar.cli.bookie.inspect import entrylog_app, journal_app, ledger_app
from magnetar.cli.bookie.offline import Dir
from magnetar.cli.bookie.repair import cookie_app, format_bookie, index_app, put_in_limbo, readonly_app
from magnetar.cli.open_store import Url
from magnetar.cli.options import ConfigFile, Settings, load_effective, setup_server_log
from magnetar.cli.serve import Port, require_free
from magnetar.config.root import Config
from magnetar.errors import ArgumentError, MagnetarError
from magnetar.ids import BookieId
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.collector import expect_long_life
from magnetar.runtime.descriptors import raise_limit
from magnetar.runtime.event_loop import run
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Runtime
from magnetar.runtime.system import SystemRuntime

app = typer.Typer()
app.add_typer(cookie_app, name="cookie")
app.add_typer(journal_app, name="journal")
app.add_typer(entrylog_app, name="entrylog")
app.add_typer(ledger_app, name="ledger")
app.add_typer(index_app, name="index")
app.add_typer(readonly_app, name="readonly")
app.command("format")(format_bookie)
app.command("limbo")(put_in_limbo)
app.command("decommission")(decommission)


@app.callback(invoke_without_command=True)
def bookie(
    context: typer.Context,
    metadata: Url = None,
    directory: Dir = None,
    port: Annotated[
        int | None,
        typer.Option(
            "--port",
            help="TCP port for clients. 0: any free port, which is saved for the next start. Default: bookie.port.",
        ),
    ] = None,
    bookie_id: Annotated[
        str | None, typer.Option("--id", help="Permanent id of the bookie. Default: its host:port.")
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run a bookie (a storage node) until it gets a signal, or inspect and repair one. A running bookie prints one
    JSON line when it is ready.
    """
    given = {
        "metadata.url": (metadata, "--metadata"),
        "bookie.dir": (directory, "--dir"),
        "bookie.port": (port, "--port"),
        "bookie.bookie_id": (bookie_id, "--id"),
    }
    if (subcommand := context.invoked_subcommand) is not None:
        if (
            config or settings or any(value is not None for value, _ in given.values())
        ):  # They would be lost, and the command work on another bookie.
            raise ArgumentError(f"options must come after the command: magnetar bookie {subcommand} ... --dir D")
        return
    effective = load_effective(config, settings, given)
    setup_server_log(effective)
    run(lambda: _serve(effective.config))


async def _serve(config: Config) -> None:
    storage = config.bookie
    require_free(
        Port(storage.listens_on, storage.port, "--port"),
        Port(storage.listens_on, storage.http_port, "--set bookie.http_port=PORT"),
    )
    raise_limit()
    runtime, metrics = SystemRuntime(), Metrics()
    async with await open_store(config, runtime, metrics) as store:
        bookie = await Bookie.open(config, runtime, store, metrics, base=os.getcwd())  # noqa: PTH109
        recovery = _recovery_of(bookie, config, runtime, store, metrics) if config.recovery.enabled else None
        try:
            ready = {"ready": True, "bookie_id": bookie.bookie_id, "port": bookie.port, "http_port": bookie.http_port}
            print(json.dumps(ready), flush=True)
            expect_long_life()
            error = await bookie.wait_failed()
            raise MagnetarError(f"bookie {bookie.bookie_id} has stopped: {error}")
        finally:
            await asyncio.shield(_close(bookie, recovery))


def _recovery_of(
    bookie: Bookie, config: Config, runtime: Runtime, store: MetadataStore, metrics: Metrics
) -> AutoRecovery:
    """Begins auto-recovery in the bookie's process. It reaches its own bookie without a socket."""
    own = BookieId(bookie.bookie_id)

    def on_roster(roster: Roster) -> None:
        bookie.switch.set(ReadOnlyReason.DECOMMISSIONED, own in roster.draining)

    recovery = AutoRecovery(
        store, config, runtime, name=own, metrics=metrics, local={own: bookie.accept}, on_roster=on_roster
    )
    recovery.start()
    return recovery


async def _close(bookie: Bookie, recovery: AutoRecovery | None) -> None:
    if recovery is not None:
        await recovery.aclose()
    await bookie.aclose()
