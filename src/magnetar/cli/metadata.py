"""`magnetar metadata`: makes a cluster's place in the store, and looks into it."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Annotated, Any, TypeAlias

import typer

from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import EXIT_FAILED, AsJson, print_fields, print_json, print_table
from magnetar.errors import NoNodeError
from magnetar.ids import LEDGER_ID_MAX, LedgerId
from magnetar.metadata.bookkeeper.cluster import init_cluster, read_cluster
from magnetar.metadata.bookkeeper.inspect import Description, describe, ledger_document
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.paths import check_path, join
from magnetar.metadata.store import MetadataStore, Node

READS_AT_ONCE_MAX = 100  # A directory may have ten thousand children.

ShowPassword: TypeAlias = Annotated[
    bool, typer.Option("--show-password", help="Print a ledger's password instead of its length.")
]

app = typer.Typer(no_args_is_help=True, help="Create the metadata of a cluster of bookies, or inspect it.")


@app.command()
def init(
    if_missing: Annotated[
        bool, typer.Option("--if-missing", help="Do nothing if the cluster exists already, instead of failing.")
    ] = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Create the metadata of a new cluster: LAYOUT, INSTANCEID, and the nodes for the registration of bookies."""

    async def command(opened: Opened) -> None:
        made = await init_cluster(opened.store, opened.paths, opened.runtime.entropy, accept_existing=if_missing)
        print_fields({"root": made.root, "instance_id": made.instance_id}, as_json)

    run_on_store(command, load_for_store(metadata, config, settings), creates=True)


@app.command()
def ls(
    path: Annotated[str, typer.Argument(help="Path of a metadata node. Default: the root.")] = "/",
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the children of a metadata node."""
    check_path(path)

    async def command(opened: Opened) -> None:
        names = await opened.store.children(path)
        rows = [
            {"name": name, "bytes": len(node.value), "version": node.version, "ephemeral": bool(node.owner)}
            for name, node in await _read_all(opened.store, path, names)
        ]
        if as_json:
            print_json(rows)
        else:
            print_table(("name", "bytes", "version", "ephemeral"), [list(row.values()) for row in rows])

    run_on_store(command, load_for_store(metadata, config, settings))


async def _read_all(store: MetadataStore, path: str, names: list[str]) -> list[tuple[str, Node]]:
    """Those that are still there."""
    found: list[tuple[str, Node]] = []
    for start in range(0, len(names), READS_AT_ONCE_MAX):
        group = names[start : start + READS_AT_ONCE_MAX]
        nodes = await asyncio.gather(*(store.get(join(path, name)) for name in group))
        found += [(name, node) for name, node in zip(group, nodes, strict=True) if node is not None]
    return found


@app.command()
def get(
    path: Annotated[str, typer.Argument(help="Path of a metadata node.")],
    raw: Annotated[
        bool, typer.Option("--raw", help="Write the bytes of the value to standard output without decoding them.")
    ] = False,
    show_password: ShowPassword = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the value of a metadata node. Known kinds of nodes are decoded; other values are printed as text or
    hexadecimal.
    """
    check_path(path)

    async def command(opened: Opened) -> None:
        node = await opened.store.get(path)
        if node is None:
            raise NoNodeError(f"{path} does not exist; `magnetar metadata ls` lists what does")
        if raw:
            sys.stdout.buffer.write(node.value)
            return
        _print_node(path, node, describe(opened.paths, path, node, show_password=show_password), as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


@app.command()
def ledger(
    ledger_id: Annotated[
        int, typer.Argument(metavar="ID", min=0, max=LEDGER_ID_MAX, help="Id of the ledger, a number.")
    ],
    show_password: ShowPassword = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the metadata of a ledger: state, quorums, fragments and custom metadata."""

    async def command(opened: Opened) -> None:
        await read_cluster(opened.store, opened.paths)  # Else every ledger of an unknown layout would be missing.
        ledgers = LedgerMetadataStore(opened.store, opened.paths, opened.runtime.entropy)
        stored = await ledgers.read(LedgerId(ledger_id))
        document = ledger_document(stored.value, show_password=show_password)
        path = opened.paths.ledger(LedgerId(ledger_id))
        print_ledger({**document, "path": path, "node_version": stored.version}, as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


def _print_node(path: str, node: Node, description: Description, as_json: bool) -> None:
    about: dict[str, Any] = {
        "path": path,
        "version": node.version,
        "created_ms": node.created_ms,
        "modified_ms": node.modified_ms,
        "owner": node.owner or None,
        "kind": description.kind,
        "problem": description.problem,
    }
    if as_json:
        print_json({**about, "content": description.content})
    elif description.kind == "ledger" and description.problem is None:
        print_ledger({**description.content, "path": path, "node_version": node.version}, as_json)
    else:
        shown = {key: value for key, value in about.items() if value is not None}
        shown |= {key: _when(shown[key]) for key in ("created_ms", "modified_ms")}
        print_fields({**shown, **description.content}, as_json)
    if description.problem is not None:
        print("hint: `--raw` writes the bytes as they are", file=sys.stderr)
        raise typer.Exit(EXIT_FAILED)


def print_ledger(document: dict[str, Any], as_json: bool, *, when: Callable[[int], str] | None = None) -> None:
    """`when` shows the time of creation."""
    if as_json:
        print_json(document)
        return
    fields = {key: value for key, value in document.items() if key not in ("fragments", "custom_metadata")}
    if fields["ctime_ms"] is not None:
        fields["ctime_ms"] = (when or _when)(fields["ctime_ms"])
    print_fields(fields, as_json)
    if document["custom_metadata"]:
        print()
        print_table(("custom metadata", "value"), list(document["custom_metadata"].items()))
    print()
    rows = [
        (f["first_entry_id"], "-" if f["last_entry_id"] is None else f["last_entry_id"], ", ".join(f["bookies"]))
        for f in document["fragments"]
    ]
    print_table(("first entry", "last entry", "bookies"), rows)


def _when(milliseconds: int) -> str:
    try:
        return f"{datetime.fromtimestamp(milliseconds / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC ({milliseconds})"
    except (OverflowError, ValueError, OSError):  # A time beyond the calendar.
        return str(milliseconds)
