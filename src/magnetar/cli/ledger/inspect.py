"""`magnetar ledger info` and `ls`: a ledger's metadata, and its form on a terminal."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any, Final

import typer

from magnetar.cli.ledger.options import Id, Password, PasswordFile, password_given, run_with_client
from magnetar.cli.open_store import Url, load_for_store
from magnetar.cli.options import AsJson, ConfigFile, Settings
from magnetar.cli.output import Listing, note, print_json, print_table, printable
from magnetar.errors import ArgumentError, LedgerError, MagnetarError
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.inspect import ledger_document
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState


def print_ledger(found: LedgerMetadata, as_json: bool, more: dict[str, Any] | None = None) -> None:
    document = {**ledger_document(found), **(more or {})}
    if as_json:
        print_json(document)
        return
    fragments = document.pop("fragments")
    custom = document.pop("custom_metadata")
    print_fields(document, as_json)
    if custom:
        print()
        print_table(("custom metadata", "value"), list(custom.items()))
    print()
    rows = [
        (f["first_entry_id"], "-" if f["last_entry_id"] is None else f["last_entry_id"], ", ".join(f["bookies"]))
        for f in fragments
    ]
    print_table(("first entry", "last entry", "bookies"), rows)


def print_fields(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(
            ("field", "value"), [(key, "-" if value is None else printable(value)) for key, value in fields.items()]
        )


# --- commands ---------------------------------------------------------------------------------------------------------

_METADATA_AT_ONCE_MAX: Final = 100


def info(
    ledger_id: Id,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the metadata of a ledger. If it is not closed, the bookies are asked for its last confirmed entry."""
    given = password_given(password, password_file)

    async def command(client: LedgerClient) -> None:
        found = await client.metadata(ledger_id)
        if found.is_closed:
            print_ledger(found, as_json, {"last_confirmed": found.last_entry_id})
            return
        try:
            reader = await client.open_no_recovery(ledger_id, password=given)
        except LedgerError as error:
            print_ledger(found, as_json, {"last_confirmed": None})
            note(f"the last confirmed entry is not known: {error}")
        else:
            print_ledger(reader.metadata, as_json, {"last_confirmed": reader.last_confirmed})

    run_with_client(command, load_for_store(metadata, config, settings))


def ls(
    state: Annotated[
        str | None, typer.Option("--state", help="List only ledgers in this state: open, in_recovery or closed.")
    ] = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the ledgers of the cluster."""
    wanted = None if state is None else _state(state)
    widths = {"ledger_id": 19, "state": 11, "quorums": 9, "last_entry_id": 13, "length": 14, "fragments": 9}

    async def command(client: LedgerClient) -> None:
        listing = Listing("ledger", widths, as_json)
        group: list[LedgerId] = []
        async for found in client.list():
            group.append(found)
            if len(group) == _METADATA_AT_ONCE_MAX:
                await _list_group(client, group, listing, wanted)
                group = []
        await _list_group(client, group, listing, wanted)

    run_with_client(command, load_for_store(metadata, config, settings))


async def _list_group(
    client: LedgerClient, group: list[LedgerId], listing: Listing, wanted: LedgerState | None
) -> None:
    found = await asyncio.gather(*map(client.metadata, group), return_exceptions=True)
    for ledger_id, m in zip(group, found, strict=True):
        if isinstance(m, MagnetarError):
            note(f"ledger {ledger_id}: {m}")  # Deleted meanwhile, or its metadata is damaged.
        elif isinstance(m, BaseException):
            raise m
        elif wanted is None or m.state is wanted:
            end = (m.last_entry_id, m.length) if m.is_closed else (None, None)
            quorums = f"{m.ensemble_size}/{m.write_quorum}/{m.ack_quorum}"
            listing.row((ledger_id, m.state.name, quorums, *end, len(m.fragments)))


def _state(name: str) -> LedgerState:
    try:
        return LedgerState[name.upper().replace("-", "_")]
    except KeyError:
        raise ArgumentError(f"--state {name!r}: use open, in_recovery or closed") from None
