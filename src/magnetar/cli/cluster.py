"""`magnetar cluster`: makes what the brokers and bookies of a new cluster share in the metadata store."""

from __future__ import annotations

import contextlib
from typing import Annotated

import typer

from magnetar.broker.resources.resources import Resources
from magnetar.cli.open_store import Opened, Url, run_on_store
from magnetar.cli.options import ConfigFile, Settings, load_for_short_command
from magnetar.cli.output import AsJson, print_json, print_table
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.open import open_configuration_store

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
    configuration_metadata: Annotated[
        str | None,
        typer.Option(
            "--configuration-metadata",
            metavar="URL",
            help="URL of the metadata store that several clusters share. Default: metadata.configuration_url.",
        ),
    ] = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Create the metadata of a new cluster: the layout of BookKeeper, the cluster's own entry under the name in
    broker.cluster, and the tenants and namespaces public/default and pulsar/system.
    """
    given = {
        "metadata.url": (metadata, "--metadata"),
        "metadata.configuration_url": (configuration_metadata, "--configuration-metadata"),
    }
    loaded = load_for_short_command(config, settings, given)

    async def command(opened: Opened) -> None:
        made = await init_cluster(opened.store, opened.paths, opened.runtime.entropy, accept_existing=if_missing)
        async with contextlib.AsyncExitStack() as closing:
            configuration = await open_configuration_store(loaded, opened.runtime)
            if configuration is not None:
                await closing.enter_async_context(configuration)
            resources = Resources(opened.store, loaded.broker, configuration)
            closing.push_async_callback(resources.aclose)
            await resources.bootstrap(service_url=web_service_url, broker_service_url=broker_service_url)
        _print({"cluster": loaded.broker.cluster, "root": made.root, "instance_id": str(made.instance_id)}, as_json)

    run_on_store(command, loaded, creates=True)


def _print(fields: dict[str, str], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(("field", "value"), list(fields.items()))
