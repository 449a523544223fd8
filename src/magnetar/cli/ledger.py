"""`magnetar ledger`: makes, writes, reads, follows, recovers and deletes ledgers on a cluster of bookies.

Reading:   leaves the writer alone, and shows what is committed. Only `recover` takes a ledger from its writer.
Writing:   a ledger has one writer, for its whole life. `write` makes a ledger of its own; one that `create` made can be
           written once: it carries a mark that the first `write` takes away by compare-and-set, so that two of them can
           never both believe to be the writer.
Output:    entries and lists are JSON lines with `--json`, because they may be long; single answers are one document.
"""

from __future__ import annotations

import asyncio
import base64
import sys
import time
from collections import deque
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable
from contextlib import aclosing
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.cli.ledger_progress import WorkProgress
from magnetar.cli.ledger_source import lines, synthetic
from magnetar.cli.options import AsJson, ConfigFile, Force, Settings, confirm
from magnetar.cli.output import (
    EXIT_FAILED,
    Listing,
    note,
    print_error,
    print_json,
    print_line,
    print_table,
    printable,
)
from magnetar.cli.stores import Opened, Url, load_for_store, run_on_store
from magnetar.config.root import Config
from magnetar.errors import BadVersionError, ConfigError, LedgerError, MagnetarError
from magnetar.ids import LEDGER_ID_MAX, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.keys import ledger_keys
from magnetar.ledger.reader import LedgerReader
from magnetar.ledger.recovery import RecoveryProgress
from magnetar.ledger.writer import LedgerWriter
from magnetar.metadata.bookkeeper.cluster import read_cluster
from magnetar.metadata.bookkeeper.inspect import ledger_document, readable
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata, LedgerState
from magnetar.wire.bookkeeper.digests import DigestType, Entry

CLAIM_KEY: Final = "magnetar/written-by"
"""Custom metadata of a ledger that `create` made."""
_UNCLAIMED: Final = b"nobody yet"
_CLAIMED: Final = b"magnetar ledger write"
_AT_ONCE_MAX: Final = 16  # Ledgers that one command works on at the same time.
_METADATA_AT_ONCE_MAX: Final = 100
_TICK_EVERY: Final = 256  # Entries between two looks at the progress.

Id: TypeAlias = Annotated[int, typer.Argument(metavar="ID", min=0, max=LEDGER_ID_MAX, help="A ledger's number.")]
Ids: TypeAlias = Annotated[list[int], typer.Argument(metavar="ID...", min=0, max=LEDGER_ID_MAX, help="Ledgers.")]
Password: TypeAlias = Annotated[
    str | None, typer.Option("--password", help="The ledger's password; others on this machine may see it.")
]
PasswordFile: TypeAlias = Annotated[
    Path | None, typer.Option("--password-file", metavar="FILE", help="A file that holds the password, to its end.")
]
Ensemble: TypeAlias = Annotated[int, typer.Option("--ensemble", min=1, help="Bookies that share the ledger.")]
WriteQuorum: TypeAlias = Annotated[
    int | None, typer.Option("--write-quorum", min=1, help="Bookies that get each entry; else all of the ensemble.")
]
AckQuorum: TypeAlias = Annotated[
    int | None, typer.Option("--ack-quorum", min=1, help="Bookies that must have stored an entry; else a majority.")
]
Digest: TypeAlias = Annotated[str, typer.Option("--digest", help="crc32c, crc32, hmac or dummy.")]
GivenId: TypeAlias = Annotated[
    int | None, typer.Option("--id", min=0, max=LEDGER_ID_MAX, help="This id instead of the cluster's next.")
]
Custom: TypeAlias = Annotated[
    list[str] | None, typer.Option("--custom", metavar="KEY=VALUE", help="Custom metadata; may be repeated.")
]
First: TypeAlias = Annotated[int, typer.Option("--first", min=0, help="Begin with this entry.")]
Raw: TypeAlias = Annotated[
    bool, typer.Option("--raw", help="Only the payloads, as they are, each followed by a line end.")
]

app = typer.Typer(no_args_is_help=True, help="Make, write, read, follow, recover and delete ledgers.")


# --- making and writing -----------------------------------------------------------------------------------------------


@app.command()
def create(
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    digest: Digest = "crc32c",
    ledger_id: GivenId = None,
    custom: Custom = None,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Make an empty ledger and leave it open, for one `magnetar ledger write ID`."""
    chosen = _choices(ensemble, write_quorum, ack_quorum, digest, custom, password, password_file)
    chosen["custom_metadata"][CLAIM_KEY] = _UNCLAIMED

    async def command(client: LedgerClient) -> None:
        writer = await client.create(ledger_id=ledger_id, **chosen)
        await writer.release()
        _print_ledger(writer.metadata, as_json)

    _run(command, load_for_store(metadata, config, settings))


@app.command()
def write(
    ledger_id: Annotated[
        int | None,
        typer.Argument(metavar="[ID]", min=0, max=LEDGER_ID_MAX, help="One that `create` made; else a new one."),
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=0, help="So many made-up entries.")] = None,
    size: Annotated[int, typer.Option("--size", min=0, help="Bytes of each made-up entry.")] = 1024,
    in_flight: Annotated[int, typer.Option("--in-flight", min=1, help="Entries under way at once.")] = 1000,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Do not close the ledger: for trying recovery.")
    ] = False,
    ensemble: Ensemble = 3,
    write_quorum: WriteQuorum = None,
    ack_quorum: AckQuorum = None,
    digest: Digest = "crc32c",
    custom: Custom = None,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Append entries: each line of standard input, or made-up ones with --count; then close the ledger."""
    chosen = _choices(ensemble, write_quorum, ack_quorum, digest, custom, password, password_file)

    async def command(client: LedgerClient) -> None:
        if ledger_id is None:
            writer = await client.create(**chosen)
            note(f"ledger {writer.ledger_id}")  # Now: if this command is killed, the ledger can still be found.
        else:
            writer = await _claim(client, ledger_id, chosen["password"])
        source = lines() if count is None else synthetic(count, size)
        report = await _write(writer, source, count, in_flight, keep_open)
        _print_fields(report, as_json)

    _run(command, load_for_store(metadata, config, settings))


async def _claim(client: LedgerClient, ledger_id: int, password: bytes) -> LedgerWriter:
    stored = await client.parts.ledgers.read(LedgerId(ledger_id))
    found = stored.value
    if found.state is not LedgerState.OPEN or found.custom_metadata.get(CLAIM_KEY) != _UNCLAIMED:
        raise LedgerError(
            f"ledger {ledger_id} cannot be written: it is {found.state.name} and has, or had, a writer. "
            "Leave the id out, and a new ledger is made"
        )
    keys = ledger_keys(found, password, DigestType.CRC32C)
    claimed = replace(found, custom_metadata={**found.custom_metadata, CLAIM_KEY: _CLAIMED})
    try:
        stored = await client.parts.ledgers.update(claimed, stored.version)
    except BadVersionError:
        raise LedgerError(f"ledger {ledger_id} was taken by another writer just now: use another") from None
    return await LedgerWriter.open(stored, keys, client.parts)


async def _write(
    writer: LedgerWriter, source: AsyncIterator[bytes], count: int | None, in_flight: int, keep_open: bool
) -> dict[str, Any]:
    began = time.monotonic()
    acked = written_bytes = 0
    under_way: deque[asyncio.Future[int]] = deque()
    try:
        with WorkProgress("entries acknowledged", count) as progress:
            async for payload in source:
                if len(under_way) >= in_flight:
                    await under_way.popleft()
                    acked += 1
                    progress.show(acked)
                under_way.append(writer.enqueue(payload))
                written_bytes += len(payload)
            while under_way:
                await under_way.popleft()
                acked += 1
                progress.show(acked)
    except MagnetarError:
        note(f"ledger {writer.ledger_id}: acknowledged up to entry {writer.last_confirmed}")
        raise
    finally:
        await _end(writer, keep_open)
        await asyncio.gather(*under_way, return_exceptions=True)
    seconds = time.monotonic() - began
    return {
        "ledger_id": writer.ledger_id,
        "entries": acked,
        "bytes": written_bytes,
        "last_entry_id": writer.last_confirmed,
        "closed": not keep_open,
        "seconds": round(seconds, 3),
        "entries_per_second": round(acked / seconds) if seconds else None,
        "ensemble_changes": writer.statistics().ensemble_changes,
    }


async def _end(writer: LedgerWriter, keep_open: bool) -> None:
    if keep_open:
        await writer.release()
        return
    try:
        await writer.close()
    finally:
        await writer.release()


# --- reading ----------------------------------------------------------------------------------------------------------


@app.command()
def read(
    ledger_id: Id,
    first: First = 0,
    last: Annotated[int | None, typer.Option("--last", min=0, help="End with this entry.")] = None,
    unconfirmed: Annotated[
        bool, typer.Option("--unconfirmed", help="Also beyond what is committed, up to --last.")
    ] = False,
    raw: Raw = False,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print the entries of a ledger, up to what is committed. Its writer, if there is one, goes on undisturbed."""
    if unconfirmed and last is None:
        raise ConfigError("--unconfirmed needs --last: nobody knows where entries that are not committed end")
    given = _password(password, password_file)

    async def command(client: LedgerClient) -> None:
        reader = await client.open_no_recovery(ledger_id, password=given)
        await _print_entries(
            reader.entries(first, last) if last is None or not unconfirmed else _unconfirmed(reader, first, last),
            as_json,
            raw,
        )
        if not reader.is_closed:
            note(f"ledger {ledger_id} is {reader.metadata.state.name}; committed up to entry {reader.last_confirmed}")

    _run(command, load_for_store(metadata, config, settings))


async def _unconfirmed(reader: LedgerReader, first: int, last: int) -> AsyncGenerator[Entry, None]:
    for entry_id in range(first, last + 1):
        for entry in await reader.read_unconfirmed(entry_id, entry_id):
            yield entry


@app.command()
def tail(
    ledger_id: Id,
    first: Annotated[
        int | None, typer.Option("--first", min=0, help="Begin with this entry; else with new ones.")
    ] = None,
    count: Annotated[int | None, typer.Option("--count", min=1, help="End after so many entries.")] = None,
    raw: Raw = False,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print entries as they are committed, until the ledger is closed or you stop it."""
    given = _password(password, password_file)

    async def command(client: LedgerClient) -> None:
        reader = await client.open_no_recovery(ledger_id, password=given)
        begin = reader.last_confirmed + 1 if first is None else first
        await _print_entries(reader.tail(begin), as_json, raw, count_max=count, flushes=True)

    _run(command, load_for_store(metadata, config, settings))


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


@app.command()
def info(
    ledger_id: Id,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Print what is known about a ledger. Of one that is not closed, bookies are asked how far it is committed."""
    given = _password(password, password_file)

    async def command(client: LedgerClient) -> None:
        found = await client.metadata(ledger_id)
        if found.is_closed:
            _print_ledger(found, as_json, {"last_confirmed": found.last_entry_id})
            return
        try:
            reader = await client.open_no_recovery(ledger_id, password=given)
        except LedgerError as error:
            _print_ledger(found, as_json, {"last_confirmed": None})
            note(f"how far it is committed is not known: {error}")
        else:
            _print_ledger(reader.metadata, as_json, {"last_confirmed": reader.last_confirmed})

    _run(command, load_for_store(metadata, config, settings))


@app.command()
def ls(
    state: Annotated[str | None, typer.Option("--state", help="Only these: open, in_recovery or closed.")] = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the ledgers of the cluster."""
    wanted = None if state is None else _state(state)
    widths = {"ledger_id": 19, "state": 11, "quorums": 9, "last_entry_id": 13, "length": 14, "fragments": 9}

    async def command(opened: Opened) -> None:
        await read_cluster(opened.store, opened.paths)
        listing = Listing("ledger", widths, as_json)
        async with LedgerClient(opened.store, command_config, opened.runtime) as client:
            group: list[LedgerId] = []
            async for found in client.list():
                group.append(found)
                if len(group) == _METADATA_AT_ONCE_MAX:
                    await _list_group(client, group, listing, wanted)
                    group = []
            await _list_group(client, group, listing, wanted)

    command_config = load_for_store(metadata, config, settings)
    run_on_store(command, command_config)


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


# --- ending -----------------------------------------------------------------------------------------------------------


@app.command()
def recover(
    ledger_ids: Ids,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Take ledgers from their writers, and close them behind their last entry. What was acknowledged stays."""
    given = _password(password, password_file)

    async def command(client: LedgerClient) -> None:
        widths = {"ledger_id": 19, "last_entry_id": 13, "length": 14, "written_again": 13}
        listing = Listing("ledger", widths, as_json)
        done = 0

        async def one(ledger_id: int) -> None:
            nonlocal done
            written = 0

            def on_progress(step: RecoveryProgress) -> None:
                nonlocal written
                written = step.entries_confirmed
                progress.show(done, f"ledger {ledger_id}: entry {step.entry_id} found")

            closed = await client.recover(ledger_id, password=given, on_progress=on_progress)
            done += 1
            listing.row((ledger_id, closed.last_entry_id, closed.length, written))

        with WorkProgress("ledgers recovered", len(ledger_ids)) as progress:
            await _for_each(ledger_ids, one)

    _run(command, load_for_store(metadata, config, settings))


@app.command()
def delete(
    ledger_ids: Ids,
    force: Force = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete ledgers for good. Bookies give the room back with their next collection."""
    effective = load_for_store(metadata, config, settings)
    names = ", ".join(map(str, ledger_ids))
    confirm(f"Delete ledger {names}, and all its entries?", force)

    async def command(client: LedgerClient) -> None:
        listing = Listing("ledger", {"ledger_id": 19, "deleted": 7}, as_json)

        async def one(ledger_id: int) -> None:
            await client.delete(ledger_id)
            listing.row((ledger_id, True))

        await _for_each(ledger_ids, one)

    _run(command, effective)


async def _for_each(ledger_ids: list[int], one: Callable[[int], Awaitable[None]]) -> None:
    """Several at a time. One that fails does not keep the others from it; the exit code tells."""
    distinct = list(dict.fromkeys(ledger_ids))
    failed = False
    for at in range(0, len(distinct), _AT_ONCE_MAX):
        group = distinct[at : at + _AT_ONCE_MAX]
        for outcome in await asyncio.gather(*map(one, group), return_exceptions=True):
            if isinstance(outcome, MagnetarError):
                failed = True
                print_error(outcome)
            elif isinstance(outcome, BaseException):
                raise outcome
    if failed:
        raise typer.Exit(EXIT_FAILED)


# --- options ----------------------------------------------------------------------------------------------------------


def _run(command: Callable[[LedgerClient], Awaitable[None]], config: Config) -> None:
    async def with_client(opened: Opened) -> None:
        await read_cluster(opened.store, opened.paths)  # Else every ledger of an unknown layout would be missing.
        async with LedgerClient(opened.store, config, opened.runtime) as client:
            await command(client)

    run_on_store(with_client, config)


def _choices(
    ensemble: int,
    write_quorum: int | None,
    ack_quorum: int | None,
    digest: str,
    custom: list[str] | None,
    password: str | None,
    password_file: Path | None,
) -> dict[str, Any]:
    return {
        "ensemble_size": ensemble,
        "write_quorum": write_quorum,
        "ack_quorum": ack_quorum,
        "digest_type": _digest(digest),
        "password": _password(password, password_file),
        "custom_metadata": _custom(custom or []),
    }


def _password(given: str | None, file: Path | None) -> bytes:
    if given is not None and file is not None:
        raise ConfigError("--password and --password-file exclude each other: give one of them")
    if file is None:
        return (given or "").encode()
    try:
        return file.read_bytes().rstrip(b"\r\n")
    except OSError as error:
        raise ConfigError(f"cannot read the password file {file}: {error.strerror}") from None


def _digest(name: str) -> DigestType:
    try:
        return DigestType[name.upper()]
    except KeyError:
        raise ConfigError(f"--digest {name!r}: known are crc32c, crc32, hmac and dummy") from None


def _state(name: str) -> LedgerState:
    try:
        return LedgerState[name.upper().replace("-", "_")]
    except KeyError:
        raise ConfigError(f"--state {name!r}: known are open, in_recovery and closed") from None


def _custom(pairs: list[str]) -> dict[str, bytes]:
    custom: dict[str, bytes] = {}
    for pair in pairs:
        key, equals, value = pair.partition("=")
        if not equals or not key:
            raise ConfigError(f"--custom {pair!r}: write it as KEY=VALUE")
        custom[key] = value.encode()
    return custom


# --- printing ---------------------------------------------------------------------------------------------------------


def _print_ledger(found: LedgerMetadata, as_json: bool, more: dict[str, Any] | None = None) -> None:
    document = {**ledger_document(found), **(more or {})}
    if as_json:
        print_json(document)
        return
    fragments = document.pop("fragments")
    custom = document.pop("custom_metadata")
    _print_fields(document, as_json)
    if custom:
        print()
        print_table(("custom metadata", "value"), list(custom.items()))
    print()
    rows = [
        (f["first_entry_id"], "-" if f["last_entry_id"] is None else f["last_entry_id"], ", ".join(f["bookies"]))
        for f in fragments
    ]
    print_table(("first entry", "last entry", "bookies"), rows)


def _print_fields(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        print_table(
            ("field", "value"), [(key, "-" if value is None else printable(value)) for key, value in fields.items()]
        )
