"""`magnetar ledger info`, `ls`, `read` and `tail`: they leave the writer alone, and show what is committed."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import typer

from magnetar.cli.ledger.options import First, Id, Password, PasswordFile, Raw, password_given, run_with_client
from magnetar.cli.metadata import print_ledger
from magnetar.cli.open_store import Url, load_for_store
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import AsJson, Listing, note, print_line
from magnetar.errors import ArgumentError, LedgerError, MagnetarError
from magnetar.ids import LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.metadata.bookkeeper.inspect import ledger_document, readable
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.wire.bookkeeper.digests import Entry

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
            _print_ledger(found, as_json, found.last_entry_id)
            return
        try:
            reader = await client.open_no_recovery(ledger_id, password=given)
        except LedgerError as error:
            _print_ledger(found, as_json, None)
            note(f"the last confirmed entry is not known: {error}")
        else:
            _print_ledger(reader.metadata, as_json, reader.last_confirmed)

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


def _print_ledger(found: LedgerMetadata, as_json: bool, last_confirmed: int | None) -> None:
    print_ledger(ledger_document(found) | {"last_confirmed": last_confirmed}, as_json, when=str)


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


_TICK_EVERY: Final = 256  # Entries between two looks at the progress.


def read(
    ledger_id: Id,
    first: First = 0,
    last: Annotated[int | None, typer.Option("--last", min=0, help="Id of the last entry to print.")] = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="Also print entries after the last confirmed one, up to --last.")
    ] = False,
    raw: Raw = False,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a ledger up to the last confirmed one. A running writer is not disturbed."""
    if unconfirmed and last is None:
        raise ArgumentError("--unconfirmed needs --last: the end of unconfirmed entries is not known")
    given = password_given(password, password_file)

    async def command(client: LedgerClient) -> None:
        reader = await client.open_no_recovery(ledger_id, password=given)
        await _print_entries(
            reader.entries(first, last) if last is None or not unconfirmed else _unconfirmed(reader, first, last),
            as_json,
            raw,
        )
        if not reader.is_closed:
            note(
                f"ledger {ledger_id} is {reader.metadata.state.name}; its last confirmed entry is "
                f"{reader.last_confirmed}"
            )

    run_with_client(command, load_for_store(metadata, config, settings))


async def _unconfirmed(reader: LedgerReader, first: int, last: int) -> AsyncGenerator[Entry, None]:
    for entry_id in range(first, last + 1):
        for entry in await reader.read_unconfirmed(entry_id, entry_id):
            yield entry


def tail(
    ledger_id: Id,
    first: Annotated[
        int | None, typer.Option("--first", min=0, help="Id of the first entry to print. Default: only new entries.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="Exit after this many entries.")] = None,
    raw: Raw = False,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a ledger as they are confirmed, until the ledger is closed or you stop the command."""
    given = password_given(password, password_file)

    async def command(client: LedgerClient) -> None:
        reader = await client.open_no_recovery(ledger_id, password=given)
        begin = reader.last_confirmed + 1 if first is None else first
        await _print_entries(reader.tail(begin), as_json, raw, count_max=count, flushes=True)

    run_with_client(command, load_for_store(metadata, config, settings))


async def _print_entries(
    entries: AsyncGenerator[Entry, None],
    as_json: bool,
    raw: bool,
    *,
    count_max: int | None = None,
    flushes: bool = False,
) -> None:
    listing = Listing("entry", {"entry_id": 12, "bytes": 9, "payload": 0}, as_json)
    count = 0
    async with aclosing(entries):
        async for entry in entries:
            _print_entry(entry, listing, as_json, raw)
            if flushes:
                sys.stdout.flush()
            count += 1
            if count == count_max:
                return
            if count % _TICK_EVERY == 0:
                await asyncio.sleep(0)  # Lets a signal through.


def _print_entry(entry: Entry, listing: Listing, as_json: bool, raw: bool) -> None:
    payload = bytes(entry.payload)
    if raw:
        sys.stdout.buffer.write(payload + b"\n")
    elif as_json:
        print_line({"entry_id": entry.entry_id, "bytes": len(payload), **_payload_document(payload)})
    else:
        listing.row((entry.entry_id, len(payload), readable(payload)))


def _payload_document(payload: bytes) -> dict[str, str]:
    try:
        return {"text": payload.decode()}
    except UnicodeDecodeError:
        return {"base64": base64.b64encode(payload).decode("ascii")}
