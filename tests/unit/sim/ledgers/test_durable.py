"""What counts as durable on a bookie: what every power loss would leave, and nothing else."""

from __future__ import annotations

import asyncio
import struct

from magnetar.config.storage import JournalConfig
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.durable import DurableImage
from magnetar.sim.machine import SimMachine
from magnetar.storage.frames import add_frame
from magnetar.storage.journal.format import ExplicitLac, Fence, RecordKind, encode_explicit_lac, encode_fence
from magnetar.storage.journal.journal import Journal
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest

LEDGER = 7
KEY = bytes(20)


def entry(entry_id: int) -> bytes:
    payload = b"payload %d" % entry_id
    return entry_digest(DigestType.CRC32C).seal(LEDGER, entry_id, entry_id - 1, 9, payload) + payload


class Disk:
    def __init__(self) -> None:
        self.machine = SimMachine("1/bookie")
        for path in ("/journal0", "/ledgers0"):
            self.machine.mount(path)
        self.image = DurableImage(self.machine, journals=1, directories=1)
        self.image.index_path = "/ledgers0/index"
        self.durable: list[object] = []

    async def open(self) -> Journal:
        runtime = self.machine.start()
        return await Journal.open(
            runtime.disk("/journal0", name="journal"),
            JournalConfig(),
            0,
            lambda _: None,
            is_begun=False,
            entropy=runtime.entropy,
            on_durable=self.durable.extend,
            on_failed=lambda error: None,
        )

    async def end_dead(self) -> None:
        """The journal of a process that crashed is never closed: what it was waiting for ends here, and is heard."""
        self.machine.release_dead()
        left = asyncio.all_tasks() - {asyncio.current_task()}
        for task in left:
            task.cancel()
        await asyncio.gather(*left, return_exceptions=True)


async def test_an_entry_is_durable_when_its_group_is_synced_and_not_before() -> None:
    disk = Disk()
    journal = await disk.open()
    journal.submit(RecordKind.ADDS, [add_frame(KEY, entry(0))], "first")
    assert disk.image.entry(LEDGER, 0) is None
    await until(lambda: bool(disk.durable), "a sync")
    assert disk.image.entry(LEDGER, 0) == entry(0)
    assert disk.image.entry(LEDGER, 1) is None
    assert disk.image.new_entries == [(LEDGER, 0, entry(0))]
    await journal.aclose()


async def test_what_is_durable_stays_so_over_a_power_loss() -> None:
    disk = Disk()
    journal = await disk.open()
    journal.submit(RecordKind.ADDS, [add_frame(KEY, entry(0))], "an add")
    journal.submit(RecordKind.FENCE, [encode_fence(Fence(LEDGER, KEY))], "a fence")
    await until(lambda: len(disk.durable) == 2, "two syncs")
    disk.machine.crash(Crash.DROP_UNSYNCED)
    disk.image.forget()
    assert disk.image.entry(LEDGER, 0) == entry(0)
    assert disk.image.is_fenced(LEDGER)
    assert not disk.image.is_fenced(LEDGER + 1)
    await disk.end_dead()


async def test_a_lac_is_durable_when_it_or_a_greater_one_is() -> None:
    disk = Disk()
    journal = await disk.open()
    told = ExplicitLac(LEDGER, KEY, struct.pack(">qq", LEDGER, 5))
    journal.submit(RecordKind.EXPLICIT_LAC, [encode_explicit_lac(told)], "a LAC")
    assert not disk.image.has_lac(LEDGER, 5)
    await until(lambda: bool(disk.durable), "a sync")
    assert [disk.image.has_lac(LEDGER, lac) for lac in (4, 5, 6)] == [True, True, False]
    await journal.aclose()


async def test_entries_of_the_last_group_may_be_taken_for_a_torn_tail() -> None:
    disk = Disk()
    journal = await disk.open()
    for entry_id in range(2):
        journal.submit(RecordKind.ADDS, [add_frame(KEY, entry(entry_id))], entry_id)
        await until(lambda entry_id=entry_id: len(disk.durable) == entry_id + 1, "a sync")
    assert disk.image.needed() == [(LEDGER, 0)]
    await journal.aclose()


async def test_an_emptied_disk_has_nothing() -> None:
    disk = Disk()
    journal = await disk.open()
    journal.submit(RecordKind.ADDS, [add_frame(KEY, entry(0))], "an add")
    await until(lambda: bool(disk.durable), "a sync")
    disk.machine.crash(Crash.POWER_LOSS)
    disk.machine.empty("/journal0")
    disk.image.forget()
    assert disk.image.entry(LEDGER, 0) is None
    await disk.end_dead()
