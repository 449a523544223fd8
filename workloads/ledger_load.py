"""A writer as a process of its own: appends numbered messages to ledgers, and reports every acknowledgement at once.

    python workloads/ledger_load.py --metadata zk://… [--recover LEDGER --first-message N] [--rate 1500]

Stream:    message n has the bytes `message(n)`. Entry e of a ledger is message `first message of the ledger + e`. With
           `--recover`, a ledger that another writer left open is recovered first, and the stream goes on behind its
           last entry, in a ledger of its own: so all ledgers together hold every message once, in order.
Reports:   lines on standard output, one write each, at the moment the client says so. What is in the pipe was
           acknowledged, whatever happens to this process afterwards.
             recovered LEDGER LAST-ENTRY     ledger LEDGER FIRST-MESSAGE     bookies LEDGER ID,ID,ID
             acked LEDGER FIRST LAST SECONDS       closed LEDGER LAST-ENTRY       failed WHY
           Seconds are those of the system's monotonic clock, so they can be compared between processes.
Load:      so many entries in flight, always, but no more than `--rate` a second: the disk is not ours alone.
End:       SIGTERM closes the ledger and ends with 0. A writer that fails says so and ends with 1.
Read next: ledger_writer.py (the side that starts it), ledger_check.py (reads everything back)
"""

from __future__ import annotations

import argparse
import asyncio
import os
import struct
import sys
import time
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, Final

from magnetar.config.load import Assignment, load
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.metadata.open import open_store
from magnetar.runtime.event_loop import run
from magnetar.runtime.logs import setup_logging
from magnetar.runtime.system import SystemRuntime

ENSEMBLE, WRITE_QUORUM, ACK_QUORUM = 3, 3, 2
IN_FLIGHT: Final = 100
RATE: Final = 1_500
"""Entries a second."""
_SIZES: Final = (17, 90, 100, 110, 300, 1_000, 2_000)
_NUMBER: Final = struct.Struct(">Q")
_TICK_S: Final = 0.01
_LINE_BYTES_MAX: Final = 2_000  # POSIX lets a pipe take 512 bytes in one piece, Linux 4,096.
_BURST_S: Final = 0.1  # After a stall, this much of the missed load is made up for at once, and no more.


def message(number: int) -> bytes:
    size = _SIZES[number % len(_SIZES)]
    pattern = _NUMBER.pack(number)
    return (pattern * (size // len(pattern) + 1))[:size]


def message_number(payload: bytes) -> int | None:
    """None if it is none of our messages, byte for byte."""
    if len(payload) < _NUMBER.size:
        return None
    (number,) = _NUMBER.unpack_from(payload)
    return number if payload == message(number) else None


class Load:
    """Keeps a writer busy. `wait_failed` returns only if it fails."""

    def __init__(self, rate: int) -> None:
        self._rate = rate
        self._allowance = 0.0
        self._in_flight = 0
        self._first_message = 0
        self._is_over = False
        self._writer: LedgerWriter | None = None
        self._bookies: tuple[str, ...] = ()
        self._failure: asyncio.Future[MagnetarError] = asyncio.get_running_loop().create_future()

    def begin(self, writer: LedgerWriter, first_message: int) -> None:
        self._writer = writer
        self._first_message = first_message
        report("ledger", writer.ledger_id, first_message)

    async def wait_failed(self) -> MagnetarError:
        """Allows as many entries as the rate says, as time goes by. When it is cancelled, nothing more is sent."""
        loop = asyncio.get_running_loop()
        before = loop.time()
        try:
            while not self._failure.done():
                now = loop.time()
                self._allowance = min(self._allowance + (now - before) * self._rate, _BURST_S * self._rate)
                before = now
                self._fill()
                await asyncio.wait([self._failure], timeout=_TICK_S)
        finally:
            self._is_over = True
        return self._failure.result()

    def _fill(self) -> None:
        writer = self._writer
        assert writer is not None
        ensemble = writer.metadata.fragments[-1].ensemble
        if ensemble != self._bookies:
            self._bookies = ensemble
            report("bookies", writer.ledger_id, ",".join(ensemble))
        if self._is_over or writer.failure is not None:
            return
        while self._in_flight < IN_FLIGHT and self._allowance >= 1 and writer.has_room:
            writer.submit(message(self._first_message + writer.last_pushed + 1), None)
            self._in_flight += 1
            self._allowance -= 1

    # --- what the writer says -----------------------------------------------------------------------------------------

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[Any]) -> None:
        assert self._writer is not None
        last = first_entry_id + len(tokens) - 1
        report("acked", self._writer.ledger_id, first_entry_id, last, f"{time.monotonic():.6f}")
        self._in_flight -= len(tokens)
        self._fill()

    def on_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        if not self._failure.done():
            self._failure.set_result(error)

    def on_room(self) -> None:
        self._fill()


def report(*words: object) -> None:
    """Shorter than what a pipe takes in one piece, so a killed writer leaves no half lines."""
    os.write(sys.stdout.fileno(), " ".join(map(str, words)).encode()[:_LINE_BYTES_MAX] + b"\n")


async def _write(config: Config, recover: int | None, first_message: int, rate: int) -> None:
    runtime = SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        if recover is not None:
            last = (await client.recover(recover)).last_entry_id
            report("recovered", recover, last)
            first_message += last + 1
        load = Load(rate)
        writer = await client.create(
            ensemble_size=ENSEMBLE, write_quorum=WRITE_QUORUM, ack_quorum=ACK_QUORUM, listener=load
        )
        load.begin(writer, first_message)
        with suppress(asyncio.CancelledError):  # SIGTERM: the load ends, the ledger is closed in order.
            raise await load.wait_failed()
        await writer.close()
        report("closed", writer.ledger_id, writer.metadata.last_entry_id)


def main() -> None:
    parser = argparse.ArgumentParser(description="Writes messages to ledgers until it is ended.")
    parser.add_argument("--metadata", required=True)
    parser.add_argument("--recover", type=int, metavar="LEDGER")
    parser.add_argument("--first-message", type=int, default=0)
    parser.add_argument("--rate", type=int, default=RATE)
    parser.add_argument("--set", action="append", default=[], metavar="SECTION.KEY=VALUE")
    given = parser.parse_args()
    setup_logging("INFO", "json", sys.stderr)
    settings = [*map(Assignment.parse, given.set), Assignment("metadata.url", given.metadata, "--metadata")]
    config = load(flags=settings).config
    try:
        run(lambda: _write(config, given.recover, given.first_message, given.rate))
    except MagnetarError as error:
        report("failed", type(error).__name__, str(error).replace("\n", " "))
        sys.exit(1)


if __name__ == "__main__":
    main()
