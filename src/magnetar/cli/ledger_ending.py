"""`magnetar ledger recover` and `delete`: only these take a ledger from its writer."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Final

import typer

from magnetar.cli.ledger_options import Ids, Password, PasswordFile, password_given, run_with_client
from magnetar.cli.ledger_progress import WorkProgress
from magnetar.cli.options import AsJson, ConfigFile, Force, Settings, confirm
from magnetar.cli.output import EXIT_FAILED, Listing, print_error
from magnetar.cli.stores import Url, load_for_store
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.recovery import RecoveryProgress

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
    """Take ledgers from their writers, and close them behind their last entry. What was acknowledged stays."""
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
                progress.show(done, f"ledger {ledger_id}: entry {step.entry_id} found")

            closed = await client.recover(ledger_id, password=given, on_progress=on_progress)
            done += 1
            listing.row((ledger_id, closed.last_entry_id, closed.length, written))

        with WorkProgress("ledgers recovered", len(ledger_ids)) as progress:
            await _for_each(ledger_ids, one)

    run_with_client(command, load_for_store(metadata, config, settings))


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

    run_with_client(command, effective)


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
