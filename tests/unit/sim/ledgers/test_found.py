"""Bugs that the simulator found, each as small as it can be shown."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.bookie.connection import Connection, ConnectionCounters
from magnetar.bookie.ledgers import LedgerTable
from magnetar.errors import JournalDamagedError, JournalFailedError, NotEnoughBookiesError
from magnetar.ids import BookieId
from magnetar.ledger.writing.repair import Repair
from magnetar.quorum.candidates import Candidates
from magnetar.quorum.placement import RandomPlacement
from magnetar.quorum.sizes import QuorumSizes
from magnetar.runtime.disk import Disk
from magnetar.runtime.receiving import ReceiveMemory
from magnetar.sim.device import SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.storage.journal import replay
from magnetar.storage.journal.files import DIRECTORY
from magnetar.storage.journal.format import FileHeader, encode_file_header, file_name
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.wire.bookkeeper.digests import Crc32cDigest
from magnetar.wire.bookkeeper.frames import frame_end
from magnetar.wire.bookkeeper.hot_path import AddEncoder, scan_adds

LEDGER = 7
KEY = bytes(20)


class Flags:
    """Storage, as a table of ledgers sees it."""

    def __init__(self) -> None:
        self.flags: dict[int, LedgerFlags] = {}

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None:
        return self.flags.get(ledger_id)

    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.flags[ledger_id] = flags


def add_frame(entry_id: int) -> bytes:
    return AddEncoder(LEDGER, KEY, Crc32cDigest()).header(entry_id, entry_id - 1, 0, b"")


async def test_a_context_that_is_admitted_twice_can_be_fenced() -> None:
    """A run with one unknown context has all of its contexts admitted, the known ones again."""
    table = LedgerTable(Flags())
    ledger = await table.load(LEDGER)
    frame = add_frame(0)
    (context,) = scan_adds(frame, 0, len(frame)).contexts
    table.admit(context)
    table.admit(context)
    table.fence(ledger, KEY)
    assert ledger.flags.fenced
    assert table.find_context(context) is None


class Transport:
    """As much of one as a connection that is being broken needs."""

    def __init__(self) -> None:
        self.is_aborted = False

    def get_extra_info(self, name: str) -> None: ...

    def abort(self) -> None:
        self.is_aborted = True


class FailedJournal:
    """A handler whose journal has failed."""

    def on_adds(self, *_: object) -> bool:
        raise JournalFailedError("the journal has failed and acknowledges nothing more")

    def on_closed(self, connection: Connection) -> None: ...


async def test_adds_behind_a_failed_journal_break_their_connection_and_nothing_else() -> None:
    memory = ReceiveMemory(2**16, bytes_max=2**20, frame_timeout_s=30, frame_end=frame_end)
    connection = Connection(FailedJournal(), ConnectionCounters(), memory, unwritable_wait_s=1.0)  # type: ignore[arg-type]
    transport = Transport()
    connection.connection_made(transport)  # type: ignore[arg-type]
    frame = add_frame(0)
    connection.get_buffer(-1)[: len(frame)] = frame
    connection.buffer_updated(len(frame))
    assert transport.is_aborted


async def test_a_journal_header_that_changes_between_two_reads_is_damage(monkeypatch: pytest.MonkeyPatch) -> None:
    device = SimDevice()
    disk = SimDisk(device)
    path = f"{DIRECTORY}/{file_name(1)}"
    await disk.make_dir(DIRECTORY)
    file = await disk.open(path, create=True)
    await file.append_and_sync([encode_file_header(FileHeader(1, 99, 1))])
    inspect = replay._inspect

    async def inspect_then_flip(on: Disk, at: str) -> replay.FoundFile:
        found = await inspect(on, at)
        device.flip_bit(path, 20)
        return found

    monkeypatch.setattr(replay, "_inspect", inspect_then_flip)
    with pytest.raises(JournalDamagedError, match="intact a moment ago"):
        await replay.replay_files(disk, DIRECTORY, 0, lambda _: None)
    await file.aclose()
    await disk.aclose()


async def test_a_bookie_that_failed_does_not_replace_another_one_that_failed() -> None:
    """If the bookie in its own place were lost before the change is written, it would be in the ensemble twice."""
    bookies = [BookieId(f"b{number}:1") for number in range(5)]
    engine = SimpleNamespace(
        ledger_id=LEDGER,
        change=SimpleNamespace(ensemble=tuple(bookies[:4])),
        sizes=QuorumSizes(4, 3, 2),
        placement=RandomPlacement(Random(1)),
        bookies=SimpleNamespace(candidates=lambda: Candidates.of(bookies)),
    )
    repair = Repair(cast("Any", engine), cast("Any", SimpleNamespace(random=Random(1))))
    assert repair._pick([1], {}, {}) == {1: bookies[4]}
    in_place_of_1 = cast("Any", SimpleNamespace(bookie_id=bookies[4], is_lost=False))
    with pytest.raises(NotEnoughBookiesError):
        repair._pick([2], {1: in_place_of_1}, {})
