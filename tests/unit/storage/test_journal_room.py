"""Zeros are filled in ahead of small groups, never of large ones, and a device without room for them is no failure."""

from __future__ import annotations

from magnetar.config.storage import JournalConfig
from magnetar.errors import SyncFailedError
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.storage.journal.files import RoomPolicy
from magnetar.storage.journal.format import file_name
from tests.unit.storage.journal_worlds import live, numbered, replay_of, wait_until

FIRST = f"journal/{file_name(1)}"
STEP = 64 * 2**10
CONFIG = JournalConfig(preallocated_bytes=STEP)


def policy(*groups: int, step: int = STEP, file_bytes_max: int = 2**30) -> RoomPolicy:
    made = RoomPolicy(step, file_bytes_max)
    for size in groups:
        made.note_group(size)
    return made


def test_small_groups_get_a_step_when_the_room_ends() -> None:
    room = policy(*[100] * 20)
    assert room.wanted(end=1_000, room=0) == 1_000 + STEP
    assert room.wanted(end=1_000, room=1_000 + STEP) is None
    assert room.wanted(end=900 + STEP, room=1_000 + STEP) is None
    assert room.wanted(end=950 + STEP, room=1_000 + STEP) == 950 + 2 * STEP


def test_large_groups_get_none_and_small_ones_again_later() -> None:
    room = policy(*[10_000] * 20)
    assert room.wanted(end=1_000, room=0) is None
    for _ in range(50):
        room.note_group(100)
    assert room.wanted(end=1_000, room=0) is not None


def test_room_ends_with_the_file() -> None:
    room = policy(*[100] * 20, file_bytes_max=5_000)
    assert room.wanted(end=1_000, room=0) == 5_000
    assert room.wanted(end=4_950, room=0) is None


def test_step_of_zero_is_never() -> None:
    assert policy(1, step=0).wanted(end=1_000, room=0) is None


async def test_groups_overwrite_zeros_that_were_filled_in() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.write(b"first", b"second")
    assert len(device.cached(FIRST)) > STEP
    size = len(device.cached(FIRST))
    await life.write(*(b"%d" % n for n in range(20)))
    assert len(device.cached(FIRST)) == size
    await life.crash(Crash.DROP_UNSYNCED)
    assert await replay_of(device) == numbered(b"first", b"second", *(b"%d" % n for n in range(20)))


async def test_device_without_room_for_zeros_still_takes_groups() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.wait_prepared()
    device.leave_room(5_000)
    await life.write(*(b"%d" % n for n in range(20)))
    assert len(device.cached(FIRST)) < 5_000
    assert life.failures == []
    await life.aclose()
    device.capacity_bytes = None
    assert await replay_of(device) == numbered(*(b"%d" % n for n in range(20)))


async def test_failed_sync_of_zeros_is_the_end_too() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.wait_prepared()
    life.on_durable = lambda tokens: device.faults.strike_next(Fault.SYNC_ERROR, FIRST)
    life.submit(b"first")
    await wait_until(lambda: bool(life.failures))
    assert isinstance(life.failures[0].__cause__, SyncFailedError)
    await life.aclose()
