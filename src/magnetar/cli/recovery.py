"""`magnetar recovery`: what auto-recovery does, why, and for how long yet; and its switches.

`magnetar autorecovery` is here, too: the same service that each bookie process contains, alone in a process.
"""

from __future__ import annotations

import asyncio
import json
import socket
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any, Final, TypeAlias

import typer

from magnetar.autorecovery.checks import CheckTotals, LedgerChecks
from magnetar.autorecovery.drain import Drain, DrainLook, Rate
from magnetar.autorecovery.marking import Marker
from magnetar.autorecovery.rate import ByteRate
from magnetar.autorecovery.repair import RepairTools
from magnetar.autorecovery.roster import Roster
from magnetar.autorecovery.service import AutoRecovery
from magnetar.autorecovery.status import Document, RecoveryStatus
from magnetar.bookie.observation import ObservationServer
from magnetar.cli.open_store import Opened, Url, load_for_store, run_on_store
from magnetar.cli.options import ConfigFile, Settings, load_effective, setup_server_log
from magnetar.cli.output import AsJson, Bar, note, print_fields, print_json, print_line, print_table
from magnetar.cli.serve import Port, require_free
from magnetar.config.bookie import NO_HTTP
from magnetar.config.root import Config
from magnetar.errors import ArgumentError, MagnetarError
from magnetar.ids import BookieId, LedgerId, bookie_id, ledger_id
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.recovery_nodes import (
    RecoveryNotes,
    RecoveryPaths,
    elected_auditor,
    is_disabled,
    request_audit,
    set_disabled,
)
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.open import open_store
from magnetar.runtime.collector import expect_long_life
from magnetar.runtime.descriptors import raise_limit
from magnetar.runtime.event_loop import run
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.web_guard import WebGuard
from magnetar.words import counted

_WATCH_S: Final = 1.0
_ROWS_MAX: Final = 1_000

Watch: TypeAlias = Annotated[
    bool, typer.Option("--watch", help="Repeat every second, with a progress bar, until nothing is left to repair.")
]

app = typer.Typer(no_args_is_help=True, help="Show and control the repair of ledgers of lost bookies.")


def marker_of(opened: Opened) -> Marker:
    notes = RecoveryNotes(opened.store, RecoveryPaths(opened.paths))
    return Marker(UnderreplicationMarks(opened.store, opened.paths), notes, opened.runtime.entropy.wall_ms)


def ledgers_of(opened: Opened) -> LedgerMetadataStore:
    return LedgerMetadataStore(opened.store, opened.paths, opened.runtime.entropy)


# --- looking ----------------------------------------------------------------------------------------------------------


@app.command()
def status(
    watch: Watch = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Show whether auto-recovery is enabled, which process is the auditor, which bookies are lost, and how many ledgers
    are still to be repaired.
    """

    async def command(opened: Opened) -> None:
        found = RecoveryStatus(opened.store, opened.paths)
        if watch:
            await _watch_marks(found, as_json)
        else:
            print_fields(await found.read(), as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


async def _watch_marks(found: RecoveryStatus, as_json: bool) -> None:
    """Ends when nothing is left to repair, except what cannot be repaired."""
    rate, most = Rate(), 0
    with Bar() as bar:
        while True:
            document = await found.read()
            left = _left(document)
            most = max(most, left)
            rate.on_sample(time.monotonic(), left)
            if as_json:
                print_line(document | {"ledgers_per_s": round(rate.per_second, 3), "seconds_left": rate.seconds_left})
            else:
                speed = f"{rate.per_second:.1f} ledgers/s, {document['bytes_per_s'] / 1e6:.1f} MB/s"
                bar.show(f"repairing {_eta(rate)}, {speed}", most - left, most or None)
            if not is_repairing(document):
                break
            await asyncio.sleep(_WATCH_S)
    if not as_json:
        print_fields(document, as_json)


def is_repairing(document: Document) -> bool:
    """Also while a bookie is away whose ledgers the auditor may still mark."""
    decides = document["enabled"] and document["auditor"] is not None
    return _left(document) > 0 or bool(decides and document["away"])


def _left(document: Document) -> int:
    left: int = document["marked_ledgers"] - document["states"]["unrepairable"]
    return left


def _eta(rate: Rate) -> str:
    seconds = rate.seconds_left
    return "(time left unknown)" if seconds is None else f"({seconds:.0f} s left)"


@app.command("ls")
def list_marks(
    limit: Annotated[int, typer.Option("--limit", help="Largest number of ledgers to list.", min=1)] = _ROWS_MAX,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """List the ledgers that are marked for repair, with the reason and the state of each."""

    async def command(opened: Opened) -> None:
        rows = await RecoveryStatus(opened.store, opened.paths).rows(limit)
        if as_json:
            print_json(rows)
            return
        columns = ("ledger", "state", "since", "bookies", "copied", "why")
        print_table(columns, [_table_row(row) for row in rows])
        if len(rows) == limit:
            note(f"the list ends after {counted(limit, 'ledger')}: --limit lists more")

    run_on_store(command, load_for_store(metadata, config, settings))


def _table_row(row: Document) -> list[object]:
    reasons = "; ".join(f"{bookie}: {why}" for bookie, why in row["reasons"].items())
    copied = f"{row['copied_entries']}/{row['entries_to_copy']}" if row["entries_to_copy"] else "-"
    why = " ".join(filter(None, (row["why"], row["entries"] and f"(entries {row['entries']})")))
    return [row["ledger"], row["state"], _when(row["since_ms"]), reasons or "-", copied, why or "-"]


def _when(ms: int | None) -> str:
    return "-" if not ms else datetime.fromtimestamp(ms / 1000, UTC).strftime("%Y-%m-%d %H:%M:%SZ")


@app.command()
def explain(
    ledger: Annotated[int, typer.Argument(metavar="LEDGER", help="Id of a ledger.")],
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Explain why a ledger is marked for repair, since when, which process repairs it, and what holds it."""
    wanted = ledger_id(ledger)

    async def command(opened: Opened) -> None:
        document = await RecoveryStatus(opened.store, opened.paths).explain(wanted, ledgers_of(opened))
        if as_json:
            print_json(document)
            return
        for line in explanation(document):
            print(line)

    run_on_store(command, load_for_store(metadata, config, settings))


def explanation(document: Document) -> list[str]:
    """Returns the lines that say it to people."""
    name = f"ledger {document['ledger']}"
    lines = []
    if not document["exists"]:
        lines.append(f"{name} does not exist: it was deleted, or never created")
    if not document["marked"]:
        lines.append(f"{name} is not marked for repair")
    else:
        lines.append(f"{name} is marked for repair since {_when(document['marked_ms'])}")
        lines += _note_lines(document)
    if document["locked_by"] is not None:
        lines.append(f"worker: {document['locked_by'] or 'unknown'}")
    for fragment in document["fragments"]:
        end = "open" if fragment["last_entry"] is None else fragment["last_entry"]
        lines.append(f"entries {fragment['first_entry']} to {end}: {', '.join(fragment['bookies'])}")
        lines += [f"  bookie {bookie} is not registered" for bookie in fragment["away"]]
        lines += [f"  bookie {bookie} is being decommissioned" for bookie in fragment["decommissioning"]]
    return lines


def _note_lines(document: Document) -> list[str]:
    found = document["note"]
    if found is None:
        return [f"bookies without good copies: {', '.join(document['marked_bookies'])} (the reason was not recorded)"]
    lines = [f"reason: bookie {bookie}: {why}" for bookie, why in found["reasons"].items()]
    lines.append(f"state: {found['state']} since {_when(found['since_ms'])}")
    if found["why"]:
        lines.append(f"because: {found['why']}")
    if found["entries"]:
        lines.append(f"lost entries: {found['entries']}")
    if found["entries_to_copy"] and found["seconds"]:
        speed = found["copied_bytes"] / found["seconds"] / 1e6
        lines.append(f"copied: {found['copied_entries']} of {found['entries_to_copy']} entries, {speed:.1f} MB/s")
    return lines


@app.command()
def whoisauditor(
    metadata: Url = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Print which process is the auditor: the one that finds lost bookies and marks their ledgers."""

    async def command(opened: Opened) -> None:
        auditor = await elected_auditor(opened.store, RecoveryPaths(opened.paths))
        if as_json:
            print_json({"auditor": auditor})
        elif auditor is None:
            raise MagnetarError("no auditor is elected: start a bookie with auto-recovery, or `magnetar autorecovery`")
        else:
            print(auditor)

    run_on_store(command, load_for_store(metadata, config, settings))


# --- switches ---------------------------------------------------------------------------------------------------------


@app.command()
def enable(metadata: Url = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False) -> None:
    """Enable auto-recovery for the whole cluster."""
    _switch(load_for_store(metadata, config, settings), as_json, disabled=False)


@app.command()
def disable(
    metadata: Url = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Disable auto-recovery for the whole cluster: nothing is marked, and no repair begins, until it is enabled."""
    _switch(load_for_store(metadata, config, settings), as_json, disabled=True)


def _switch(config: Config, as_json: bool, *, disabled: bool) -> None:
    async def command(opened: Opened) -> None:
        has_changed = await set_disabled(opened.store, RecoveryPaths(opened.paths), disabled)
        if not has_changed:
            note(f"auto-recovery was {'disabled' if disabled else 'enabled'} before")
        print_fields({"enabled": not disabled}, as_json)

    run_on_store(command, config)


@app.command()
def trigger(
    metadata: Url = None, config: ConfigFile = None, settings: Settings = None, as_json: AsJson = False
) -> None:
    """Ask the auditor to look for lost bookies now, whatever the delay, and even if most bookies are away."""
    loaded = load_for_store(metadata, config, settings)

    async def command(opened: Opened) -> None:
        await request_audit(opened.store, RecoveryPaths(opened.paths), loaded.recovery.lost_bookie_delay_s)
        if await is_disabled(opened.store, RecoveryPaths(opened.paths)):
            note("auto-recovery is disabled: the audit begins after `magnetar recovery enable`")
        print_fields({"audit_requested": True}, as_json)

    run_on_store(command, loaded)


# --- work that an operator asks for -----------------------------------------------------------------------------------


@app.command()
def recover(
    bookie: Annotated[str, typer.Argument(metavar="BOOKIE", help="Id of a bookie that is lost.")],
    watch: Watch = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Mark all ledgers of a lost bookie for repair, without waiting for the auditor. With --watch, wait until they are
    repaired.
    """
    wanted = bookie_id(bookie)

    async def command(opened: Opened) -> None:
        for read_only in (False, True):
            if await opened.store.get(opened.paths.registration(wanted, readonly=read_only)) is not None:
                raise ArgumentError(
                    f"bookie {wanted} is running: stop it first, or drain it with `magnetar bookie decommission`"
                )
        drain = Drain(opened.store, opened.paths, ledgers_of(opened), marker_of(opened), wanted)
        await drain.begin("an operator asked for its repair")
        look = await drain.look()
        if not look.ledgers and await opened.store.get(opened.paths.cookie(wanted)) is None:
            raise ArgumentError(
                f"bookie {wanted} has no cookie, and no ledger names it: `magnetar recovery status` lists the bookies"
            )
        if watch:
            look = await watch_drain(drain, as_json)
        print_fields(drain_document(wanted, look), as_json)

    run_on_store(command, load_for_store(metadata, config, settings))


def drain_document(bookie: BookieId, look: DrainLook) -> dict[str, Any]:
    return {
        "bookie": bookie,
        "ledgers": look.ledgers,
        "ledgers_left": look.ledgers_left,
        "bytes": look.bytes,
        "bytes_left": look.bytes_left,
        "blockers": list(look.blockers),
        "done": look.is_done,
    }


async def watch_drain(drain: Drain, as_json: bool) -> DrainLook:
    """Returns when the drain is done. Shows progress, rate, the time that is left, and what blocks it."""
    rate = Rate()
    told: tuple[str, ...] = ()
    with Bar() as bar:
        while True:
            look = await drain.look()
            rate.on_sample(time.monotonic(), look.bytes_left)
            if as_json:
                print_line(
                    {
                        "ledgers_left": look.ledgers_left,
                        "bytes_left": look.bytes_left,
                        "bytes_per_s": round(rate.per_second),
                        "seconds_left": rate.seconds_left,
                        "blockers": list(look.blockers),
                    }
                )
            else:
                speed = f"{rate.per_second / 1e6:.1f} MB/s"
                bar.show(f"draining {_eta(rate)}, {speed}", look.ledgers - look.ledgers_left, look.ledgers or None)
                if look.blockers and look.blockers != told:
                    told = look.blockers
                    for blocker in told:
                        note(blocker)
            if look.is_done:
                return look
            await asyncio.sleep(_WATCH_S)


@app.command()
def check(
    ledgers: Annotated[
        list[int] | None, typer.Argument(metavar="[LEDGER]...", help="Ids of ledgers. Default: all ledgers.")
    ] = None,
    every_entry: Annotated[
        bool, typer.Option("--every-entry", help="Verify every entry, not only the first and last of each fragment.")
    ] = False,
    metadata: Url = None,
    config: ConfigFile = None,
    settings: Settings = None,
    as_json: AsJson = False,
) -> None:
    """Read entries from each of their bookies, verify them, and mark the ledgers that lack good copies.
    `recovery.copy_bytes_per_s` limits the rate.
    """
    wanted = [ledger_id(each) for each in ledgers or []]
    loaded = load_for_store(metadata, config, settings)

    async def command(opened: Opened) -> None:
        totals = await _check(opened, loaded, wanted, every_entry)
        document = {
            "ledgers": totals.ledgers,
            "verified": totals.entries,
            "faulty_ledgers": totals.faulty,
            "newly_marked": totals.marked,
        }
        print_fields(document, as_json)

    run_on_store(command, loaded)


async def _check(opened: Opened, config: Config, wanted: list[LedgerId], every_entry: bool) -> CheckTotals:
    timeout_s = config.metadata.operation_timeout_ms / 1000
    roster = Roster(opened.store, opened.paths, timeout_s=timeout_s)
    async with LedgerClient(opened.store, config, opened.runtime) as client:
        try:
            await roster.start()
            rate = ByteRate(config.recovery.copy_bytes_per_s)
            tools = RepairTools(client.context, config.recovery, roster, rate, rate)
            await UnderreplicationMarks(opened.store, opened.paths).prepare()
            checks = LedgerChecks(tools, marker_of(opened))
            with Bar() as bar:
                return await checks.check(
                    _each(wanted) if wanted else client.list(),
                    every_entry=every_entry,
                    rate=rate,
                    on_progress=lambda totals: bar.show("checking ledgers", totals.ledgers, len(wanted) or None),
                )
        finally:
            await roster.aclose()


async def _each(ids: list[LedgerId]) -> AsyncIterator[LedgerId]:
    for each in ids:
        yield each


# --- the service alone ------------------------------------------------------------------------------------------------

autorecovery_app = typer.Typer()


@autorecovery_app.callback(invoke_without_command=True)
def autorecovery(
    metadata: Url = None,
    http_port: Annotated[
        int, typer.Option("--http-port", help="TCP port for /metrics and /health. 0: any free port; -1: no HTTP.")
    ] = 0,
    name: Annotated[
        str, typer.Option("--name", help="Name that operators see as auditor and worker. Default: the host's name.")
    ] = "",
    config: ConfigFile = None,
    settings: Settings = None,
) -> None:
    """Run auto-recovery without a bookie until it gets a signal: the auditor, if this process is elected, and a
    worker. It prints one JSON line when it is ready.
    """
    effective = load_effective(config, settings, {"metadata.url": (metadata, "--metadata")})
    setup_server_log(effective)
    run(lambda: _serve(effective.config, http_port, name or f"autorecovery-{socket.gethostname()}"))


async def _serve(config: Config, http_port: int, name: str) -> None:
    host = config.bookie.listens_on
    require_free(Port(host, http_port, "--http-port"))
    raise_limit()
    runtime, metrics = SystemRuntime(), Metrics()
    async with await open_store(config, runtime, metrics) as store:
        recovery = AutoRecovery(store, config, runtime, name=name, metrics=metrics)
        server = ObservationServer(
            metrics, lambda: Health(recovery.is_running, {}), WebGuard(config.http, host, [host])
        )
        bound = await server.start(host, http_port) if http_port != NO_HTTP else None
        try:
            recovery.start()
            print(json.dumps({"ready": True, "name": name, "http_port": bound}), flush=True)
            expect_long_life()
            raise MagnetarError(f"auto-recovery has stopped: {await recovery.wait_failed()}")
        finally:
            await asyncio.shield(_close(recovery.aclose, server.aclose))


async def _close(*closes: Callable[[], Awaitable[None]]) -> None:
    for close in closes:
        await close()
