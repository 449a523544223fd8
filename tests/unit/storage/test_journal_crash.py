"""Crashes at random moments, several lives in a row: what was called durable is replayed, in order, exactly once.

Invariant: what must come back is everything that was durable, or that an open which returned has replayed, in the order
of its numbers; then, possibly, the beginning of what the last life submitted besides. Nothing else, ever.
"""

from __future__ import annotations

import asyncio
import random

import pytest

from magnetar.config.storage import JournalConfig
from magnetar.errors import JournalDamagedError, MagnetarError
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
    RECORD_HEADER_BYTES,
    RecordKind,
    file_name,
)
from tests.unit.storage.journal_worlds import Life, Replay, bury, files, live, wait_until

FIRST = f"journal/{file_name(1)}"
SEEDS = 100
LIVES = 6
PREALLOCATED = (0, 64 * 2**10, 2**20)  # Never; when groups happen to be small; always.


def config(preallocated_bytes: int) -> JournalConfig:
    return JournalConfig(
        file_bytes_max=4_096,
        group_bytes_max=700,
        queue_entries_max=20,
        queue_bytes_max=4_000,
        preallocated_bytes=preallocated_bytes,
    )


class World:
    def __init__(self, seed: int) -> None:
        self.random = random.Random(f"{seed}/workload")
        self.device = SimDevice(seed=str(seed))
        self.config = config(PREALLOCATED[seed % len(PREALLOCATED)])
        self.promised: Replay = []
        self.maybe: Replay = []
        self.mark = 0
        self.is_begun = False
        self.life_number = 0
        self.durable_count = 0
        self.torn_count = 0

    async def run(self) -> None:
        for _ in range(LIVES):
            await self.one_life()
        await self.open_and_check()

    async def one_life(self) -> None:
        life = self.new_life()
        opening = asyncio.create_task(life.open(), name="journal-opening")
        if self.random.random() < 0.2:
            await self.turns(self.random.randint(0, 60))
            if not opening.done():
                await life.crash(self.crash_kind())
                return
        await opening
        self.is_begun = True
        self.check(life.replayed)
        await self.work(life)

    async def work(self, life: Life) -> None:
        if self.random.random() < 0.15:
            self.device.faults.rates[Fault.SYNC_ERROR] = 0.05
        submitters = [asyncio.create_task(self.submit_many(life, n), name=f"journal-submitter-{n}") for n in range(3)]
        flusher = asyncio.create_task(self.forget_some(life), name="journal-flusher")
        await self.turns(self.random.randint(0, 600))
        if self.random.random() < 0.2:
            await asyncio.gather(*submitters, flusher, return_exceptions=True)
            await self.close(life)
        self.note_durable(life)
        self.device.faults.rates.clear()
        await life.crash(self.crash_kind())
        await asyncio.gather(*submitters, flusher, return_exceptions=True)

    async def close(self, life: Life) -> None:
        """In some lives to its end; in the others the crash comes in the middle of it."""
        closing = asyncio.create_task(life.journal.aclose(), name="journal-closing")
        if self.random.random() < 0.4:
            await closing
        else:
            await self.turns(self.random.randint(0, 12))

    async def submit_many(self, life: Life, submitter: int) -> None:
        for n in range(self.random.randint(0, 60)):
            body = b"life %d submitter %d number %d " % (self.life_number, submitter, n)
            body += b"." * self.random.choice((0, 10, 300, 1_500))
            await life.journal.wait_for_room()
            half = len(body) // 2
            sequence = life.journal.submit(RecordKind.ADDS, [body[:half], body[half:]], body)
            self.maybe.append((sequence, body))
            await self.turns(self.random.choice((0, 0, 1, 5, 20)))

    async def forget_some(self, life: Life) -> None:
        for _ in range(3):
            await self.turns(self.random.randint(20, 200))
            mark = self.random.randint(self.mark, max(self.mark, life.journal.durable_sequence))
            self.mark = mark
            await life.journal.forget_through(mark)

    def note_durable(self, life: Life) -> None:
        durable = life.durable
        assert durable == [body for _, body in self.maybe[: len(durable)]], "in the order of submission"
        self.durable_count += len(durable)
        self.promised += self.maybe[: len(durable)]
        self.maybe = self.maybe[len(durable) :]

    def check(self, replayed: Replay) -> None:
        """And from now on, what was replayed is promised."""
        expected = [record for record in self.promised + self.maybe if record[0] > self.mark]
        needed = sum(sequence > self.mark for sequence, _ in self.promised)
        assert replayed == expected[: len(replayed)]
        assert len(replayed) >= needed
        self.torn_count += len(replayed) < len(expected)
        self.promised, self.maybe = replayed, []

    async def open_and_check(self) -> None:
        life = self.new_life()
        await life.open()
        self.check(life.replayed)
        await life.aclose()

    def new_life(self) -> Life:
        self.life_number += 1
        seed = f"{self.device.seed}/{self.life_number}"
        return Life(self.device, config=self.config, mark=self.mark, seed=seed, is_begun=self.is_begun)

    def crash_kind(self) -> Crash:
        return self.random.choice((Crash.KILL, Crash.POWER_LOSS, Crash.POWER_LOSS, Crash.DROP_UNSYNCED))

    @staticmethod
    async def turns(count: int) -> None:
        for _ in range(count):
            await asyncio.sleep(0)


@pytest.mark.parametrize("seed", range(SEEDS))
async def test_durable_records_survive_crashes_in_order_and_once(seed: int) -> None:
    await World(seed).run()


async def test_the_crashes_above_do_something() -> None:
    durable = torn = failed = 0
    for seed in range(20):
        world = World(seed)
        await world.run()
        durable += world.durable_count
        torn += world.torn_count
        failed += world.device.faults.counts[Fault.SYNC_ERROR]
    assert durable > 1_000
    assert torn > 20
    assert failed


async def test_a_closing_group_that_was_written_and_not_synced_is_durable_once_the_next_life_has_read_it() -> None:
    device = SimDevice(seed="closing")
    life = await live(device, config=config(0))
    await life.write(b"first")
    written = len(files(device)[FIRST])
    closing = asyncio.create_task(life.journal.aclose(), name="journal-closing")
    await wait_until(lambda: len(files(device)[FIRST]) > written)
    assert device.durable(FIRST) == device.cached(FIRST)[:written], "it is killed before the sync"
    await life.crash(Crash.KILL)
    await asyncio.gather(closing, return_exceptions=True)
    life = await live(device, config=config(0), is_begun=True)
    assert device.durable(FIRST) == device.cached(FIRST)
    assert len(device.cached(FIRST)) > written
    await life.crash(Crash.KILL)


async def test_only_the_last_group_is_written_again_by_the_next_life() -> None:
    device = SimDevice(seed="again")
    life = await live(device)
    await life.write(b"first", b"x" * 1_000, b"last")
    await life.crash(Crash.KILL)
    written: list[int] = []
    image = device.tree.file(FIRST)
    note, image.write = image.write, lambda offset, data: (written.append(len(data)), note(offset, data))[1]  # type: ignore[method-assign]
    life = await live(device, is_begun=True)
    assert written == [GROUP_HEADER_BYTES + RECORD_HEADER_BYTES + len(b"last")]
    await life.crash(Crash.KILL)


# --- is every sync needed? ---


async def every_promise(ignored: str | None = None) -> SimDevice:
    """Tests each promise of durability against a power loss that leaves nothing unsynced."""
    device = SimDevice(seed="sites")
    if ignored is not None:
        device.sites.ignored.add(ignored)
    bodies = [b"%0300d" % n for n in range(40)]
    await a_journal_that_was_opened_has_a_file(device)
    await acknowledged_records_survive(device, bodies)
    await replayed_records_survive(device, bodies)
    await damage_is_noticed_after_a_restart(device)
    await damage_is_noticed_after_closing(device)
    await forgotten_files_stay_away(device)
    return device


async def a_journal_that_was_opened_has_a_file(device: SimDevice) -> None:
    for is_begun in (False, True, True):
        life = await live(device, is_begun=is_begun)
        await life.crash(Crash.DROP_UNSYNCED)


async def acknowledged_records_survive(device: SimDevice, bodies: list[bytes]) -> None:
    life = await live(device, is_begun=True)
    await life.write(*bodies)
    await life.crash(Crash.DROP_UNSYNCED)


async def replayed_records_survive(device: SimDevice, bodies: list[bytes]) -> None:
    """Also one that was written, and not synced, when its life was killed."""
    life = await live(device, seed="killed", is_begun=True)
    body = b"never acknowledged"
    life.submit(body)
    await wait_until(lambda: any(body in data for data in files(device).values()))
    await life.crash(Crash.KILL)
    bodies.append(body)
    for seed in range(3):
        life = await live(device, seed=str(seed), is_begun=True)
        assert [body for _, body in life.replayed] == bodies
        await life.crash(Crash.DROP_UNSYNCED)


async def damage_is_noticed_after_a_restart(device: SimDevice) -> None:
    path = last_used(device)
    await expect_damage(device, path, len(device.cached(path).rstrip(b"\0")) - 1)


async def damage_is_noticed_after_closing(device: SimDevice) -> None:
    life = await live(device)
    await life.write(b"the last one")
    await life.journal.aclose()
    await life.crash(Crash.DROP_UNSYNCED)
    path = last_used(device)
    await expect_damage(device, path, device.cached(path).index(b"the last one"))


async def forgotten_files_stay_away(device: SimDevice) -> None:
    life = await live(device)
    before = files(device)
    count = await life.journal.forget_through(1_000)
    assert count
    await life.crash(Crash.DROP_UNSYNCED)
    assert not set(list(before)[:count]) & set(files(device))


def last_used(device: SimDevice) -> str:
    return [path for path, data in files(device).items() if len(data) > FILE_HEADER_BYTES][-1]


async def expect_damage(device: SimDevice, path: str, offset: int) -> None:
    device.flip_bit(path, offset)
    life = Life(device)
    with pytest.raises(JournalDamagedError):
        await life.open()
    await life.disk.aclose()
    device.flip_bit(path, offset)


async def test_each_sync_is_needed() -> None:
    sites = (await every_promise()).sites.counts
    assert sorted({site.rpartition(":")[2] for site in sites}) == [
        "Journal._write",
        "Journal._write_end",
        "JournalFiles._make_durable",
        "JournalFiles.create",
        "JournalFiles.forget_through",
        "JournalFiles.open",
    ]
    assert len(sites) == 7
    harmless = []
    for site in sites:
        try:
            await every_promise(ignored=site)
        except (AssertionError, MagnetarError, pytest.fail.Exception):
            continue
        finally:
            await bury()
        harmless.append(site)
    assert harmless == []
