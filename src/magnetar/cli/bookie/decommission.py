"""`magnetar bookie decommission`: moves everything away from a bookie, and removes it from the cluster."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.autorecovery.drain import Decommission, Drain
from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import AsJson, note, print_fields
from magnetar.cli.recovery import drain_document, ledgers_of, marker_of, watch_drain
from magnetar.errors import ArgumentError
from magnetar.ids import BookieId, bookie_id


def decommission(
    bookie: Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of the bookie.")],
    cancel: Annotated[
        bool, typer.Option("--cancel", help="Stop a decommission that has begun, and use the bookie again.")
    ] = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Copy everything that a bookie stores to other bookies, then remove it from the cluster. The bookie may run
    meanwhile, and becomes read-only. The command shows the progress, the rate, the time left and what blocks it; it can
    be interrupted and run again.
    """
    wanted = bookie_id(bookie)

    async def command(opened: Opened) -> None:
        nodes = Decommission(opened.store, opened.paths, wanted)
        if cancel:
            await _cancel(nodes, wanted, as_json)
            return
        if not await nodes.is_known():
            raise ArgumentError(
                f"bookie {wanted} is not registered and has no cookie: `magnetar recovery status` lists the bookies"
            )
        await nodes.begin(opened.runtime.entropy.wall_ms())
        drain = Drain(opened.store, opened.paths, ledgers_of(opened), marker_of(opened), wanted)
        await drain.begin("the bookie is being decommissioned")
        look = await watch_drain(drain, as_json)
        is_removed = await nodes.finish()
        print_fields(drain_document(wanted, look) | {"removed": is_removed}, as_json)
        if not is_removed:
            note(f"bookie {wanted} stores nothing any more: stop it, then run this command again to remove its cookie")

    run_on_store(command, load_for_store(metadata, config, settings))


async def _cancel(nodes: Decommission, bookie: BookieId, as_json: bool) -> None:
    if not await nodes.cancel():
        raise ArgumentError(f"bookie {bookie} is not being decommissioned")
    print_fields({"bookie": bookie, "decommissioning": False}, as_json)
