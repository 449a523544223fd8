"""`magnetar ledger read` and `tail`: they leave the writer alone, and show what is committed."""

from __future__ import annotations

import asyncio
import base64
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Final

import typer

from magnetar.cli.ledger.options import First, Id, Password, PasswordFile, Raw, password_given, run_with_client
from magnetar.cli.open_store import Url, load_for_store
from magnetar.cli.options import AsJson, ConfigFile, Settings
from magnetar.cli.output import Listing, note, print_line
from magnetar.errors import ArgumentError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.metadata.bookkeeper.inspect import readable
from magnetar.wire.bookkeeper.digests import Entry

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
