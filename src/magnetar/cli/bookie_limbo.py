"""`magnetar bookie limbo`: makes a bookie that lost part of its journal, or a disk, fit to start again, safely.

Needs:     the stopped bookie's directories and the metadata store: which ledgers are in doubt is only known there.
Order:     limbo.py's. The index, if it must be rebuilt, is rebuilt first, beside the old one (bookie_repair.py).
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from magnetar.bookie.directories import DirectoryLayout, open_directories
from magnetar.bookie.identity import identify_for_repair, restore_port
from magnetar.bookie.limbo import RepairReport, Suspects, find_suspects, repair
from magnetar.cli.bookie_repair import rebuild_index_of
from magnetar.cli.logs import setup_short_command_log
from magnetar.cli.options import AsJson, ConfigFile, Force, Settings, confirm, load_effective
from magnetar.cli.output import note, print_json, print_table
from magnetar.cli.stopped_bookie import Dir, StoppedBookie
from magnetar.cli.stores import Opened, Url, run_on_store
from magnetar.config.load import Assignment
from magnetar.errors import FileLockedError, IndexDamagedError
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.storage.entry_log_format import LOGS
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.storage.open_storage import open_storage

_QUESTION = "Go on without what is lost, with every ledger that may miss something fenced and in limbo?"


def put_in_limbo(
    metadata: Url = None,
    directory: Dir = None,
    bookie_id: Annotated[
        str | None, typer.Option("--id", help="The bookie's id, if no directory is left that says it.")
    ] = None,
    force: Force = False,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Let a bookie start again after its journal was damaged or a disk was lost, without ever denying what it forgot.

    Ledgers that are not closed and have this bookie in their last ensemble are fenced and put in limbo: "no such entry"
    is never said for them. Damaged journal files are set aside, and empty directories get their cookie back.
    """
    given = {"metadata.url": (metadata, "--metadata"), "bookie.dir": (directory, "--dir")}
    given["bookie.bookie_id"] = (bookie_id, "--id")
    flags = [Assignment(key, value, option) for key, (value, option) in given.items() if value is not None]
    effective = load_effective(config, settings, flags=flags)
    setup_short_command_log(effective)
    confirm(_QUESTION, force)

    async def command(opened: Opened) -> None:
        layout = DirectoryLayout.from_config(effective.config.bookie, base=str(Path.cwd()))
        try:
            directories = await open_directories(opened.runtime, layout)
        except FileLockedError as error:
            raise FileLockedError(f"{error}; only a stopped bookie can be repaired: stop it first") from None
        try:
            bookie = StoppedBookie(effective.config, opened.runtime, directories)
            _print(await _repair(opened, bookie), as_json)
        finally:
            await directories.aclose()

    run_on_store(command, effective.config)


async def _repair(opened: Opened, bookie: StoppedBookie) -> dict[str, Any]:
    directories, config = bookie.directories, bookie.config
    found = await identify_for_repair(directories, opened.store, opened.paths, config.bookie)
    ledgers = LedgerMetadataStore(opened.store, opened.paths, opened.runtime.entropy)
    suspects = await find_suspects(ledgers, found.cookie.bookie_id)
    await restore_port(directories, config.bookie, found.cookie.bookie_id)

    async def open_it(submitted: Callable[[], int], mark: int) -> LedgerStorage:
        return await open_storage(
            opened.runtime, bookie.layout.ledger, config.storage, submitted=submitted, journal_mark=mark
        )

    async def rebuild_it() -> None:
        for directory in directories.ledger:
            await directory.disk.make_dir(LOGS)
        await rebuild_index_of(bookie)
        for problem in bookie.problems:
            if not isinstance(problem, IndexDamagedError):  # That flags are lost is what is being repaired here.
                note(str(problem))

    report = await repair(
        directories,
        found.cookie,
        found.lost,
        suspects,
        entropy=opened.runtime.entropy,
        open_storage=open_it,
        rebuild_index=rebuild_it,
    )
    _note(suspects, report)
    return {
        "bookie_id": found.cookie.bookie_id,
        "ledgers_in_limbo": len(suspects.in_limbo),
        "ledgers_fenced": len(suspects.fenced),
        "records_replayed": report.records,
        "entries_replayed": report.entries,
        "records_missing": report.missing_records,
        "set_aside": report.set_aside,
        "directories_restored": report.stamped,
    }


def _note(suspects: Suspects, report: RepairReport) -> None:
    if suspects.unreadable:
        shown = ", ".join(str(ledger_id) for ledger_id in suspects.unreadable[:10])
        note(f"the metadata of {len(suspects.unreadable)} ledgers is damaged, so they are in limbo, too: {shown}")
    for path in report.set_aside:
        note(f"{path} is what a journal file had; nothing reads it any more, and it may be removed by hand")


def _print(fields: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(fields)
    else:
        rows = [(name, ", ".join(value) or "-" if isinstance(value, list) else value) for name, value in fields.items()]
        print_table(("field", "value"), rows)
