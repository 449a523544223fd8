"""`magnetar cluster`: makes what the brokers and bookies of a new cluster share in the metadata store."""

from __future__ import annotations

from typing import Annotated

import typer

from magnetar.broker.resources.resources import Resources
from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import AsJson, print_json, print_table
from magnetar.metadata.bookkeeper.cluster import init_cluster

app = typer.Typer(no_args_is_help=True, help="Create the metadata of a cluster of brokers and bookies.")


@app.callback()
def group() -> None:
    """Create the metadata of a cluster of brokers and bookies."""  # With a callback, a lone command keeps its name.


@app.command()
def init(
    web_service_url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the brokers' admin interface: http://HOST:PORT.")
    ],
    broker_service_url: Annotated[
        str, typer.Option(metavar="URL", help="Address of the brokers for clients: pulsar://HOST:PORT.")
    ],
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Keep what exists already, instead of failing.")
    ] = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Create the metadata of a new cluster: the layout of BookKeeper, the cluster's own entry under the name in
    broker.cluster, and the tenants and namespaces public/default and pulsar/system.
    """
    loaded = load_for_store(metadata, config, settings)

    async def command(opened: Opened) -> None:
        made = await init_cluster(opened.store, opened.paths, opened.runtime.entropy, accept_existing=if_missing)
        resources = Resources(opened.store, loaded.broker)
        try:
            await resources.bootstrap(service_url=web_service_url, broker_service_url=broker_service_url)
        finally:
            await resources.aclose()
        _print({"cluster": loaded.broker.cluster, "root": made.root, "instance_id": str(made.instance_id)}, as_json)

    run_on_store(command, loaded, creates=True)


def _print(fields: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(("field", "value"), list(fields.items()))
