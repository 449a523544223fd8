"""A journal on a full device: it ends in order, and starts again although no room was made."""

from __future__ import annotations

import pytest

from magnetar.config.storage import JournalConfig
from magnetar.errors import DiskFullError, JournalDamagedError
from magnetar.sim.device import Crash, SimDevice
from magnetar.storage.journal.files import RESERVE_BYTES
from magnetar.storage.journal.format import FILE_HEADER_BYTES, RecordKind
from tests.unit.storage.journal_worlds import Life, files, live, numbered, wait_until

CONFIG = JournalConfig(file_bytes_max=4_096, group_bytes_max=4_096, preallocated_bytes=0, spare_files_max=0)
RESERVE = "journal/reserve"
BODY = b"x" * 900


def bodies(count: int, first: int = 0) -> list[bytes]:
    return [BODY + b"%d" % number for number in range(first, first + count)]


async def filled(device: SimDevice, records: int = 10) -> None:
    """Records 1 to `records` are durable; the next one finds no room, and ends the journal."""
    life = await live(device, config=CONFIG)
    await life.write(*bodies(records))
    await life.wait_prepared()
    device.leave_room(0)
    life.submit(BODY)
    await wait_until(lambda: bool(life.failures))
    assert isinstance(life.failures[0].__cause__, DiskFullError)
    await life.crash(Crash.KILL)


def expected(records: int = 10) -> list[tuple[int, bytes]]:
    return numbered(*bodies(records))


def has_reserve(device: SimDevice) -> bool:
    return device.tree.find(RESERVE) is not None and len(device.cached(RESERVE)) == RESERVE_BYTES


@pytest.mark.parametrize("crash", list(Crash))
async def test_a_journal_on_a_device_without_any_room_starts_in_its_reserve(crash: Crash) -> None:
    device = SimDevice(seed="full")
    await filled(device)
    device.crash(crash)
    device.leave_room(0)
    life = await live(device, config=CONFIG, is_begun=True)
    assert life.replayed == expected()
    life.journal.submit(RecordKind.FENCE, [b"f" * 28], b"a fence")
    await life.wait_durable(b"a fence")
    await life.crash(Crash.DROP_UNSYNCED)
    life = await live(device, config=CONFIG, is_begun=True)
    assert life.replayed == [*expected(), (11, b"f" * 28)]
    await life.aclose()


async def test_a_start_needs_no_more_room_for_a_large_last_file_than_for_a_small_one() -> None:
    large = JournalConfig(file_bytes_max=2**20, group_bytes_max=4_096, preallocated_bytes=0, spare_files_max=0)
    device = SimDevice(seed="large")
    life = await live(device, config=large)
    await life.write(*bodies(300))
    await life.crash(Crash.KILL)
    device.leave_room(0)
    life = await live(device, config=large, is_begun=True)
    assert len(life.replayed) == 300
    await life.crash(Crash.KILL)


async def test_the_reserve_is_filled_again_when_files_are_forgotten() -> None:
    device = SimDevice(seed="forgotten")
    await filled(device, records=200)
    life = await live(device, config=CONFIG, is_begun=True)
    assert not has_reserve(device)
    assert await life.journal.forget_through(200)
    assert has_reserve(device)
    await life.aclose()


async def test_a_start_without_room_and_without_a_reserve_says_how_much_it_needs_and_changes_nothing() -> None:
    device = SimDevice(seed="nothing left")
    await filled(device)
    device.tree.remove(RESERVE)
    device.leave_room(0)
    for unused in [path for path, data in files(device).items() if len(data) == FILE_HEADER_BYTES]:
        device.tree.remove(unused)
    device.leave_room(0)
    before = files(device)
    life = Life(device, config=CONFIG, is_begun=True)
    with pytest.raises(DiskFullError, match=r"make at least 65,536 bytes of room on this device, and start"):
        await life.open()
    await life.disk.aclose()
    assert files(device) == before
    device.leave_room(2 * RESERVE_BYTES + 4_096)
    life = await live(device, config=CONFIG, is_begun=True)
    assert life.replayed == expected()
    assert has_reserve(device)
    await life.aclose()


async def test_a_next_file_that_finds_no_room_is_made_when_it_is_needed() -> None:
    device = SimDevice(seed="later")
    life = await live(device, config=CONFIG)
    await life.write(*bodies(4))
    await life.wait_prepared()
    device.leave_room(len(BODY) + 50)  # A group, and less than the header of a file.
    await life.write(*bodies(1, first=4))  # In the file that was prepared.
    await life.wait_prepared()
    assert life.journal._following.result() is None
    device.capacity_bytes = None
    await life.write(*bodies(10, first=5))
    assert not life.failures
    await life.crash(Crash.DROP_UNSYNCED)
    life = await live(device, config=CONFIG, is_begun=True)
    assert life.replayed == expected(15)
    await life.aclose()


async def test_a_last_group_that_changes_between_two_reads_is_damage() -> None:
    device = SimDevice(seed="changed")
    life = await live(device, config=CONFIG)
    await life.write(b"only")
    await life.crash(Crash.KILL)
    (path, data), *_ = files(device).items()
    life = Life(device, config=CONFIG, is_begun=True)
    replay = life._replay

    def spoil(record: object) -> None:
        replay(record)  # type: ignore[arg-type]
        device.flip_bit(path, len(data) - 1)

    life._replay = spoil  # type: ignore[method-assign]
    with pytest.raises(JournalDamagedError, match="intact a moment ago"):
        await life.open()
    await life.disk.aclose()
