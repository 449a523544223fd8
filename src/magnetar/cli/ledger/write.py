"""`magnetar ledger create`, `write`, `recover` and `delete`.

Invariant: A ledger has one writer, for its whole life. `write` makes a ledger of its own; one that `create` made can be
           written once: it carries a mark that the first `write` removes by compare-and-set, so that two of them can
           never both consider themselves the writer. Only `recover` and `delete` take a ledger from its writer.
"""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace
from functools import partial
from typing import Annotated, Any, Final

import typer

from magnetar.cli.input import lines, synthetic
from magnetar.cli.ledger.options import (
    AckQuorum,
    Custom,
    Digest,
    Ensemble,
    GivenId,
    Ids,
    Password,
    PasswordFile,
    WriteQuorum,
    choices,
    password_given,
    run_with_client,
)
from magnetar.cli.metadata import print_ledger
from magnetar.cli.open_store import Url, load_for_store
from magnetar.cli.options import ConfigFile, Settings
from magnetar.cli.output import EXIT_FAILED, AsJson, Bar, Listing, Yes, confirm, note, print_error, print_fields
from magnetar.errors import BadVersionError, EntryTooLargeError, LedgerError, MagnetarError
from magnetar.ids import LEDGER_ID_MAX, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.metadata import ledger_keys
from magnetar.ledger.recovery.recovery import RecoveryProgress
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.bookkeeper.inspect import ledger_document
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.runtime.gather import gather_bounded
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX

CLAIM_KEY: Final = "magnetar/written-by"
"""Custom metadata of a ledger that `create` made."""
_UNCLAIMED: Final = b"nobody yet"
_CLAIMED: Final = b"magnetar ledger write"


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
    """Create an empty ledger and leave it open for `magnetar ledger write ID`, which can be used once."""
    chosen = choices(ensemble, write_quorum, ack_quorum, digest, custom, password, password_file)
    chosen["custom_metadata"][CLAIM_KEY] = _UNCLAIMED

    async def command(client: LedgerClient) -> None:
        writer = await client.create(ledger_id=ledger_id, **chosen)
        await writer.release()
        print_ledger(ledger_document(writer.metadata), as_json, when=str)

    run_with_client(command, load_for_store(metadata, config, settings))


def write(
    ledger_id: Annotated[
        int | None,
        typer.Argument(
            metavar="[ID]",
            min=0,
            max=LEDGER_ID_MAX,
            help="Id of a ledger made with `magnetar ledger create`. Default: create a new ledger.",
        ),
    ] = None,
    count: Annotated[
        int | None,
        typer.Option(
            "--count", min=0, help="Number of generated entries to write. Default: write the lines of standard input."
        ),
    ] = None,
    size: Annotated[int, typer.Option("--size", min=0, help="Size of each generated entry in bytes.")] = 1024,
    in_flight: Annotated[
        int, typer.Option("--in-flight", min=1, help="Largest number of unacknowledged entries.")
    ] = 1000,
    keep_open: Annotated[
        bool, typer.Option("--keep-open", help="Do not close the ledger at the end. Useful for testing recovery.")
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
    """Write entries to a ledger, then close it. The entries are the lines of standard input, or generated ones
    with --count.
    """
    chosen = choices(ensemble, write_quorum, ack_quorum, digest, custom, password, password_file)

    async def command(client: LedgerClient) -> None:
        if ledger_id is None:
            writer = await client.create(**chosen)
            note(f"ledger {writer.ledger_id}")  # Now: if this command is killed, the ledger can still be found.
        else:
            writer = await _claim(client, ledger_id, chosen["password"])
        source = lines(FRAME_BYTES_MAX) if count is None else synthetic(count, size)
        report = await _write(writer, source, count, in_flight, keep_open)
        print_fields(report, as_json)

    run_with_client(command, load_for_store(metadata, config, settings))


async def _claim(client: LedgerClient, ledger_id: int, password: bytes) -> LedgerWriter:
    stored = await client.context.ledgers.read(LedgerId(ledger_id))
    found = stored.value
    if found.state is not LedgerState.OPEN or found.custom_metadata.get(CLAIM_KEY) != _UNCLAIMED:
        raise LedgerError(
            f"ledger {ledger_id} cannot be written: it is {found.state.name} and has, or had, a writer. Omit "
            "the id to create a new ledger"
        )
    keys = ledger_keys(found, password, DigestType.CRC32C)
    claimed = replace(found, custom_metadata={**found.custom_metadata, CLAIM_KEY: _CLAIMED})
    try:
        stored = await client.context.ledgers.update(claimed, stored.version)
    except BadVersionError:
        raise LedgerError(f"ledger {ledger_id} was just taken by another writer: use another ledger") from None
    return await LedgerWriter.open(stored, keys, client.context)


async def _write(
    writer: LedgerWriter, source: AsyncIterator[bytes], count: int | None, in_flight: int, keep_open: bool
) -> dict[str, Any]:
    began = time.monotonic()
    acked = written_bytes = 0
    under_way: deque[asyncio.Future[int]] = deque()
    try:
        with Bar() as bar:
            bar.show("entries acknowledged", 0, count)
            number = 0
            async for payload in source:
                number += 1
                if len(under_way) >= in_flight:
                    await under_way.popleft()
                    acked += 1
                    bar.show("entries acknowledged", acked, count)
                under_way.append(_enqueued(writer, payload, number))
                written_bytes += len(payload)
            while under_way:
                await under_way.popleft()
                acked += 1
                bar.show("entries acknowledged", acked, count)
    except MagnetarError:
        note(f"ledger {writer.ledger_id}: acknowledged up to entry {writer.last_confirmed}")
        raise
    finally:
        try:
            await _end(writer, keep_open)
        finally:
            await asyncio.gather(*under_way, return_exceptions=True)  # Otherwise each is logged as an error of its own.
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


def _enqueued(writer: LedgerWriter, payload: bytes, number: int) -> asyncio.Future[int]:
    try:
        return writer.enqueue(payload)
    except EntryTooLargeError as error:
        raise EntryTooLargeError(f"line {number} of the input, or entry {number}, is too long: {error}") from None


async def _end(writer: LedgerWriter, keep_open: bool) -> None:
    if keep_open:
        await writer.release()
        return
    try:
        await writer.close()
    finally:
        await writer.release()


_AT_ONCE_MAX: Final = 16  # Ledgers that one command works on at the same time.


def recover(
    ledger_ids: Ids,
    password: Password = None,
    password_file: PasswordFile = None,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Fence ledgers, so that their writers cannot continue, and close them. Acknowledged entries are kept."""
    given = password_given(password, password_file)

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
                bar.show(f"ledger {ledger_id}: entry {step.entry_id} found", done, len(ledger_ids))

            closed = await client.recover(ledger_id, password=given, on_progress=on_progress)
            done += 1
            listing.row((ledger_id, closed.last_entry_id, closed.length, written))

        with Bar() as bar:
            bar.show("ledgers recovered", 0, len(ledger_ids))
            await _for_each(ledger_ids, one)

    run_with_client(command, load_for_store(metadata, config, settings))


def delete(
    ledger_ids: Ids,
    yes: Yes = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Delete ledgers permanently. Bookies free the disk space at their next garbage collection."""
    effective = load_for_store(metadata, config, settings)
    names = ", ".join(map(str, ledger_ids))
    confirm(f"Delete ledger {names}, and all its entries?", yes)

    async def command(client: LedgerClient) -> None:
        listing = Listing("ledger", {"ledger_id": 19, "deleted": 7}, as_json)

        async def one(ledger_id: int) -> None:
            await client.delete(ledger_id)
            listing.row((ledger_id, True))

        await _for_each(ledger_ids, one)

    run_with_client(command, effective)


async def _for_each(ledger_ids: list[int], one: Callable[[int], Awaitable[None]]) -> None:
    """Works on several at a time. The others are done even if one fails; the exit code reports it."""

    async def failure(ledger_id: int) -> MagnetarError | None:
        try:
            await one(ledger_id)
        except MagnetarError as error:
            return error
        return None

    distinct = dict.fromkeys(ledger_ids)
    outcomes = await gather_bounded([partial(failure, ledger_id) for ledger_id in distinct], _AT_ONCE_MAX)
    errors = [error for error in outcomes if error is not None]
    for error in errors:
        print_error(error)
    if errors:
        raise typer.Exit(EXIT_FAILED)
