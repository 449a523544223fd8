"""Journal files that are not needed any more are written again; what they held before is never taken for anything."""

from __future__ import annotations

import pytest

from magnetar.config.storage import JournalConfig
from magnetar.errors import JournalDamagedError, SyncFailedError
from magnetar.sim.device import Crash, Fault, SimDevice
from magnetar.sim.effort import measured
from magnetar.storage.journal.format import FILE_HEADER_BYTES, decode_file_header, decode_group_header, file_name
from tests.unit.storage.journal_worlds import Life, files, live, numbered, replay_of

CONFIG = JournalConfig(file_bytes_max=4_096, group_bytes_max=4_096, preallocated_bytes=0, spare_files_max=2)
BODY_BYTES = 900


def bodies(first: int, last: int) -> list[bytes]:
    """Four of them fill a file."""
    return [b"%04d" % number * (BODY_BYTES // 4) for number in range(first, last + 1)]


def spares(device: SimDevice) -> list[str]:
    return sorted(image.path for image in device.tree.files() if image.path.endswith(".spare"))


def reused(device: SimDevice) -> list[str]:
    found = []
    for path, data in files(device).items():
        header = decode_file_header(data, path)
        if header is not None and header.is_reused:
            found.append(path)
    return found


def last_group(data: bytes, file_id: int) -> int:
    offset, position = 0, FILE_HEADER_BYTES
    while (header := decode_group_header(data[position:])) is not None and header.file_id == file_id:
        offset, position = position, position + header.size
    return offset


async def written_again(device: SimDevice) -> Life:
    """Records 1 to 20 were written and forgotten; 21 to 30 stand in the files that held them."""
    life = await live(device, config=CONFIG)
    await life.write(*bodies(1, 20))
    await life.wait_prepared()
    await life.journal.forget_through(20)
    await life.write(*bodies(21, 30))
    await life.wait_prepared()
    return life


async def test_files_that_are_no_longer_needed_are_written_again() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.write(*bodies(1, 20))
    await life.wait_prepared()
    before = list(files(device))
    forgotten = await life.journal.forget_through(20)
    assert forgotten == len(before) - 2, "all but the current one and the one prepared behind it"
    assert len(spares(device)) == CONFIG.spare_files_max
    await life.write(*bodies(21, 30))
    await life.wait_prepared()
    assert spares(device) == []
    assert len(reused(device)) == CONFIG.spare_files_max
    await life.aclose()


async def test_no_spares_are_kept_where_none_are_wanted() -> None:
    device = SimDevice()
    config = JournalConfig(file_bytes_max=4_096, group_bytes_max=4_096, preallocated_bytes=0, spare_files_max=0)
    life = await live(device, config=config)
    await life.write(*bodies(1, 20))
    await life.journal.forget_through(20)
    assert spares(device) == []
    await life.aclose()


@pytest.mark.parametrize("crash", list(Crash))
async def test_only_what_was_written_last_is_replayed_from_a_file_that_is_used_again(crash: Crash) -> None:
    device = SimDevice()
    life = await written_again(device)
    assert reused(device)
    await life.crash(crash)
    assert await replay_of(device, mark=20) == numbered(*bodies(21, 30), first=21)


async def test_spares_of_a_former_life_go() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.write(*bodies(1, 20))
    await life.journal.forget_through(20)
    await life.crash(Crash.POWER_LOSS)
    assert len(spares(device)) == 2
    life = await live(device, config=CONFIG, mark=20)
    await life.wait_prepared()
    assert spares(device) == []
    assert reused(device) == []
    await life.aclose()


async def test_a_file_whose_new_name_never_became_durable_is_not_written_again() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.write(*bodies(1, 20))
    await life.wait_prepared()
    device.faults.strike_next(Fault.SYNC_ERROR, "journal")
    with pytest.raises(SyncFailedError):
        await life.journal.forget_through(20)
    assert spares(device), "as everybody sees it"
    await life.crash(Crash.KILL)
    life = await live(device, config=CONFIG, mark=20)
    await life.write(*bodies(21, 30))
    await life.wait_prepared()
    await life.crash(Crash.DROP_UNSYNCED)
    assert await replay_of(device, mark=20) == numbered(*bodies(21, 30), first=21)


async def test_damage_before_an_intact_group_of_a_file_that_is_used_again_is_damage() -> None:
    device = SimDevice()
    life = await written_again(device)
    await life.crash(Crash.KILL)
    path = reused(device)[0]
    device.flip_bit(path, FILE_HEADER_BYTES + 100)
    life = Life(device, config=CONFIG, mark=20)
    with pytest.raises(JournalDamagedError, match=f"{path} is damaged at offset {FILE_HEADER_BYTES}"):
        await life.open()
    await life.disk.aclose()


async def test_last_group_of_a_full_file_that_is_used_again_is_missed_when_it_is_damaged() -> None:
    device = SimDevice()
    life = await written_again(device)
    await life.crash(Crash.KILL)
    path = reused(device)[0]
    data = files(device)[path]
    header = decode_file_header(data, path)
    assert header is not None
    offset = last_group(data, header.file_id)
    device.flip_bit(path, offset + 100)
    life = Life(device, config=CONFIG, mark=20)
    with pytest.raises(JournalDamagedError, match=f"{path} is damaged at offset {offset}: .*later files show"):
        await life.open()
    await life.disk.aclose()


async def test_former_groups_do_not_make_a_prepared_file_look_used() -> None:
    device = SimDevice()
    life = await live(device, config=CONFIG)
    await life.write(*bodies(1, 20))
    await life.wait_prepared()
    await life.journal.forget_through(20)
    await life.write(*bodies(21, 24))
    await life.wait_prepared()
    prepared = reused(device)[-1]
    current = f"journal/{file_name(decode_number(prepared) - 1)}"
    await life.crash(Crash.KILL)
    data = bytearray(files(device)[current])
    end = len(bytes(data).rstrip(b"\0"))
    device.flip_bit(current, end - 1)
    replayed = await replay_of(device, mark=20)
    assert replayed == numbered(*bodies(21, 24), first=21)[: len(replayed)], "a torn tail, for nothing is behind it"
    assert len(replayed) < 4


@pytest.mark.parametrize("pattern", [b"MNJG", b"MNJG" + bytes(28), bytes(4), b"mgntrlog"])
async def test_what_clients_wrote_into_a_file_does_not_make_reading_it_again_expensive(pattern: bytes) -> None:
    config = JournalConfig(file_bytes_max=2**18, group_bytes_max=2**17, preallocated_bytes=0, spare_files_max=4)
    device = SimDevice()
    life = await live(device, config=config)
    record = pattern * (2**16 // len(pattern))
    await life.write(*[record + b"%d" % number for number in range(20)])
    await life.wait_prepared()
    await life.journal.forget_through(20)
    await life.write(*[record + b"%d" % number for number in range(20, 30)])  # The last file is one that is used again.
    await life.wait_prepared()
    await life.crash(Crash.KILL)
    assert len(reused(device)) > 1
    size = sum(len(data) for data in files(device).values())
    already_read = device.bytes_read
    with measured() as effort:
        await replay_of(device, mark=20)
    assert effort.lines < 3_000 + size // 100
    assert device.bytes_read - already_read < 8 * size


def decode_number(path: str) -> int:
    return int(path.rpartition("/")[2].removesuffix(".journal"), 16)
