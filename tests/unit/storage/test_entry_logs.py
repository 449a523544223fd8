"""Entry logs: what was written comes back or is an error, whatever happened to the bytes."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.errors import DiskError, LogDamagedError, StorageDamagedError
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.system_file import SystemFile
from magnetar.sim.effort import measured
from magnetar.storage.entry_log.format import (
    BLOCK_HEADER_BYTES,
    ENTRIES,
    HEADER_BYTES,
    Block,
    decode_block,
    decode_ledger_map,
    encode_block,
    encode_ledger_map,
    log_id_of,
    log_path,
)
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.entry_log.reader import Damage, EntryLogReader
from magnetar.storage.entry_log.writer import EntryLogWriter, NewBlock
from magnetar.storage.index.extents import BlockPlace
from tests.unit.storage.samples import add, chunk_of, entry_bytes, real_storage, small_config


def block_of(ledger_id: int, entries: range, payload: int = 50) -> NewBlock:
    body = chunk_of(entry_bytes(ledger_id, entry, payload) for entry in entries)
    return NewBlock(body, len(entries), [(ledger_id, len(body))])


class Logs:
    """Directories with a writer and a reader."""

    def __init__(self, dirs: LedgerDirs, log_bytes_max: int) -> None:
        self.dirs = dirs
        self.writer = EntryLogWriter(dirs, log_bytes_max, cached_bytes=log_bytes_max)
        self.reader = EntryLogReader(dirs, 2)

    async def aclose(self) -> None:
        await self.writer.aclose()
        await self.reader.aclose()
        await self.dirs.aclose()


async def open_logs(root: Path, log_bytes_max: int = 1 << 20, dirs: int = 1) -> Logs:
    roots = [str(root / str(number)) for number in range(dirs)]
    return Logs(await LedgerDirs.open(SystemRuntime(), roots), log_bytes_max)


def test_ledger_map_that_is_no_list_of_ledgers_is_damage() -> None:
    whole = encode_ledger_map({1: 100, 2: 200})
    assert decode_ledger_map(whole) == {1: 100, 2: 200}
    with pytest.raises(LogDamagedError, match="31 bytes"):
        decode_ledger_map(whole[:-1])


async def test_blocks_come_back_with_those_behind_them(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    blocks = [block_of(7, range(first, first + 5)) for first in range(0, 50, 5)]
    places = await logs.writer.append(blocks)
    await logs.writer.sync()
    _, found = await logs.reader.read_blocks(places[3], 3 * places[3].size + 10)
    assert [bytes(block.body) for block in found] == [block.body for block in blocks[3:6]]
    _, found = await logs.reader.read_blocks(places[9], 1 << 20)
    assert [bytes(block.body) for block in found] == [blocks[9].body]
    await logs.aclose()


async def test_full_log_is_finished_and_the_next_is_in_the_next_directory(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path, 1000, dirs=2)
    places = await logs.writer.append([block_of(ledger, range(5)) for ledger in range(6)])
    await logs.writer.sync()
    assert sorted({place.log_id for place in places}) == logs.dirs.log_ids()
    assert len(logs.dirs.log_ids()) > 2
    assert all((tmp_path / str(log_id % 2) / log_path(log_id)).exists() for log_id in logs.dirs.log_ids())
    for place in places:
        await logs.reader.read_blocks(place)
    await logs.aclose()


async def test_block_larger_than_a_log_gets_a_log(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path, 4096)
    big = block_of(7, range(1), 5 * 2**20)
    places = await logs.writer.append([block_of(6, range(2)), big, block_of(8, range(2))])
    _, (found, *_) = await logs.reader.read_blocks(places[1])
    assert found.body == big.body
    await logs.aclose()


async def test_log_that_grew_since_it_was_opened_is_read_to_its_end(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    for first in range(0, 30, 10):
        (place,) = await logs.writer.append([block_of(7, range(first, first + 10))])
        await logs.reader.read_blocks(place, 1 << 16)
    await logs.aclose()


async def test_log_that_was_cut_since_it_was_opened_is_read_up_to_the_cut(tmp_path: Path) -> None:
    """A flush leaves this if it finds the disk full while a reader has its log open."""
    logs = await open_logs(tmp_path)
    (kept,) = await logs.writer.append([block_of(7, range(10))])
    await logs.writer.sync()
    (given_up,) = await logs.writer.append([block_of(8, range(10))])
    await logs.reader.read_blocks(given_up)
    await logs.writer.abandon()
    reads = [logs.reader.read_blocks(kept, 1 << 16) for _ in range(3)]
    assert [[block.place for block in blocks] for _, blocks in await asyncio.gather(*reads)] == [[kept]] * 3
    with pytest.raises(LogDamagedError):
        await logs.reader.read_blocks(given_up)
    await logs.aclose()


async def test_ledger_map_is_the_same_from_the_footer_and_from_a_scan(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    body = chunk_of([entry_bytes(1, 5), entry_bytes(1, 6), entry_bytes(3, 0, 99)])
    sizes = [(1, 2 * len(chunk_of([entry_bytes(1, 5)]))), (3, len(chunk_of([entry_bytes(3, 0, 99)])))]
    await logs.writer.append([NewBlock(body, 3, sizes), block_of(3, range(1, 9))])
    await logs.writer.sync()
    scanned = await logs.reader.ledger_map(0)
    await logs.writer.aclose()
    assert await logs.reader.ledger_map(0) == scanned
    assert scanned[1] == sizes[0][1]
    assert scanned[3] == sizes[1][1] + len(block_of(3, range(1, 9)).body)
    await logs.aclose()


async def test_open_files_are_bounded(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path, 500)
    places = await logs.writer.append([block_of(7, range(first, first + 4)) for first in range(0, 80, 4)])
    for place in places * 2:
        await logs.reader.read_blocks(place)
    assert len(logs.reader._files) == 2
    await logs.aclose()


async def test_every_flipped_bit_is_an_error_or_leaves_the_bytes_right(tmp_path: Path) -> None:
    storage = await real_storage(tmp_path, small_config(read_cache_bytes_max=0, log_bytes_max=1 << 20))
    entries = {entry: entry_bytes(7, entry) for entry in range(12)}
    add(storage, entries.values())
    await storage.flush()
    (path,) = (tmp_path / "ledgers-0" / "logs").iterdir()
    intact = path.read_bytes()
    errors: list[str] = []
    for position in range(len(intact)):
        damaged = bytearray(intact)
        damaged[position] ^= 1 << position % 8
        path.write_bytes(damaged)
        for entry, expected in entries.items():
            try:
                assert bytes(await storage.get_entry(7, entry)) == expected
            except StorageDamagedError as error:
                errors.append(str(error))
    assert len(errors) > len(intact)
    assert all(log_path(0) in error for error in errors)
    path.write_bytes(intact)
    await storage.aclose()


async def test_every_cut_is_an_error_or_leaves_the_bytes_right(tmp_path: Path) -> None:
    storage = await real_storage(tmp_path, small_config(read_cache_bytes_max=0, log_bytes_max=1 << 20))
    entries = {entry: entry_bytes(7, entry) for entry in range(12)}
    add(storage, entries.values())
    await storage.flush()
    (path,) = (tmp_path / "ledgers-0" / "logs").iterdir()
    intact = path.read_bytes()
    for size in range(0, len(intact), 7):
        path.write_bytes(intact[:size])
        await storage.logs.forget(0)
        for entry, expected in entries.items():
            try:
                assert bytes(await storage.get_entry(7, entry)) == expected
            except (StorageDamagedError, DiskError):
                assert size < len(intact)
    path.write_bytes(intact)
    await storage.aclose()


async def test_scan_tells_a_torn_end_from_damage_inside(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    places = await logs.writer.append([block_of(7, range(first, first + 5)) for first in range(0, 25, 5)])
    await logs.writer.sync()
    path = tmp_path / "0" / log_path(0)
    data = bytearray(path.read_bytes())
    data[places[1].offset + 30] ^= 1
    path.write_bytes(data[:-10])
    found = [found async for found in logs.reader.scan(0)]
    assert [block.place for block in found if isinstance(block, Block)] == [places[0], places[2], places[3]]
    assert [damage for damage in found if isinstance(damage, Damage)] == [
        Damage(0, places[1].offset, places[2].offset, is_tail=False),
        Damage(0, places[4].offset, len(data) - 10, is_tail=True),
    ]
    await logs.aclose()


async def test_torn_end_full_of_what_looks_like_blocks_is_searched_once(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    (place,) = await logs.writer.append([block_of(7, range(5))])
    await logs.writer.sync()
    path = tmp_path / "0" / log_path(0)
    chosen = ENTRIES.to_bytes(4, "little") * (2**16 // 4)
    path.write_bytes(path.read_bytes() + chosen)
    with measured() as effort:
        found = [found async for found in logs.reader.scan(0)]
    assert [type(each) for each in found] == [Block, Damage]
    assert found[1] == Damage(0, place.offset + place.size, path.stat().st_size, is_tail=True)
    assert logs.reader.bytes_read < 4 * len(chosen)
    assert effort.lines < 4 * len(chosen)
    await logs.aclose()


async def test_damaged_end_of_a_finished_log_is_no_torn_end(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    (place,) = await logs.writer.append([block_of(7, range(5))])
    await logs.writer.aclose()
    path = tmp_path / "0" / log_path(0)
    data = bytearray(path.read_bytes())
    data[place.offset] ^= 1
    path.write_bytes(data)
    found = [found async for found in logs.reader.scan(0)]
    assert [damage.is_tail for damage in found if isinstance(damage, Damage)] == [False]
    await logs.aclose()


async def test_log_without_its_header_is_an_error(tmp_path: Path) -> None:
    logs = await open_logs(tmp_path)
    await logs.writer.append([block_of(7, range(5))])
    path = tmp_path / "0" / log_path(0)
    path.write_bytes(b"x" * 4000)
    with pytest.raises(LogDamagedError, match="does not begin with its header"):
        [found async for found in logs.reader.scan(0)]
    await logs.aclose()


def test_block_in_the_wrong_place_is_damage() -> None:
    block = encode_block(0x6B6C4201, 3, 100, 1, b"body") + b"body"
    assert decode_block(block, 0, 3, 100).place == BlockPlace(3, 100, BLOCK_HEADER_BYTES + 4)
    for log_id, offset in [(4, 100), (3, 101), (3, HEADER_BYTES)]:
        with pytest.raises(LogDamagedError):
            decode_block(block, 0, log_id, offset)


async def test_log_in_two_directories_is_refused(tmp_path: Path) -> None:
    for number in range(2):
        (tmp_path / str(number) / "logs").mkdir(parents=True)
        (tmp_path / str(number) / log_path(5)).touch()
    with pytest.raises(DiskError, match="not the directories of one bookie"):
        await open_logs(tmp_path, dirs=2)


async def test_foreign_file_among_the_logs_is_refused(tmp_path: Path) -> None:
    (tmp_path / "0" / "logs").mkdir(parents=True)
    (tmp_path / "0" / "logs" / "notes.txt").touch()
    with pytest.raises(DiskError, match="is not an entry log"):
        await open_logs(tmp_path)


@pytest.mark.parametrize("name", ["1.log", "0000000G.log", "00000001.txt", "00000001", "0000000A.log", ".log"])
def test_only_our_own_names_are_logs(name: str) -> None:
    assert log_id_of(name) is None


def test_name_and_id_of_a_log_belong_together() -> None:
    assert log_id_of(log_path(0xABC).removeprefix("logs/")) == 0xABC


async def test_old_pages_are_given_back_and_the_newest_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    forgotten: dict[str, int] = {}

    async def note(file: SystemFile, end: int) -> None:
        forgotten[file.path] = end

    monkeypatch.setattr(SystemFile, "forget_cached", note)
    logs = await open_logs(tmp_path, log_bytes_max=3_000)  # And as many stay.
    for ledger_id in range(12):
        await logs.writer.append([block_of(ledger_id, range(5))])
        await logs.writer.sync()
    sizes = {log_path(log_id): await logs.reader.size(log_id) for log_id in logs.dirs.log_ids()}
    kept = {path: size - min(size, forgotten.get(path, 0)) for path, size in sizes.items()}
    assert sum(kept.values()) == 3_000
    assert [path for path, size in kept.items() if size] == list(sizes)[-2:], "the newest two"
    await logs.aclose()


async def test_files_that_stay_open_for_their_pages_are_bounded(tmp_path: Path) -> None:
    logs = Logs(await LedgerDirs.open(SystemRuntime(), [str(tmp_path)]), log_bytes_max=500)
    logs.writer = EntryLogWriter(logs.dirs, 500, cached_bytes=10**9)
    for ledger_id in range(40):
        await logs.writer.append([block_of(ledger_id, range(5))])
        await logs.writer.sync()
    assert len(logs.writer._finished) <= 8
    await logs.aclose()
