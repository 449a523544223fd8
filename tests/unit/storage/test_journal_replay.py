"""A torn tail is cut; any other damage is an error that names file and offset, and changes nothing."""

from __future__ import annotations

import asyncio
import tracemalloc

import pytest

from magnetar.config.storage import JournalConfig
from magnetar.errors import JournalDamagedError
from magnetar.sim.device import Crash, SimDevice
from magnetar.sim.disk import SimDisk
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    FileHeader,
    RecordKind,
    decode_file_header,
    decode_group_header,
    encode_file_header,
    file_name,
    group_header,
    record_header,
)
from magnetar.storage.journal.journal import Journal
from tests.unit.storage.journal_worlds import Life, Replay, files, live, numbered, replay_of

FIRST = f"journal/{file_name(1)}"
SECOND = f"journal/{file_name(2)}"
THIRD = f"journal/{file_name(3)}"
PLAIN = JournalConfig(preallocated_bytes=0)
SMALL_FILES = JournalConfig(file_bytes_max=4_096, group_bytes_max=4_096, preallocated_bytes=0)


async def put(device: SimDevice, content: dict[str, bytes]) -> None:
    disk = SimDisk(device)
    await disk.make_dir("journal")
    for path, data in content.items():
        file = await disk.open(path, create=True)
        await file.truncate(0)
        await file.append_and_sync([data])
        await file.aclose()
    await disk.sync_dir()
    await disk.sync_dir("journal")
    await disk.aclose()


async def device_with(content: dict[str, bytes]) -> SimDevice:
    device = SimDevice()
    await put(device, content)
    return device


async def crashed(*bodies: bytes, config: JournalConfig = PLAIN) -> dict[str, bytes]:
    """The files of a journal that was killed when these were durable."""
    device = SimDevice()
    life = await live(device, config=config)
    await life.write(*bodies)
    await life.wait_prepared()
    await life.crash(Crash.KILL)
    return files(device)


def group_offsets(data: bytes) -> list[int]:
    offsets, position = [], FILE_HEADER_BYTES
    while (header := decode_group_header(data[position:])) is not None:
        offsets.append(position)
        position += header.size
    return offsets


async def replay(content: dict[str, bytes], mark: int = 0) -> Replay:
    return await replay_of(await device_with(content), mark)


async def expect_damage(content: dict[str, bytes], path: str, offset: int, mark: int = 0) -> JournalDamagedError:
    device = await device_with(content)
    life = Life(device, mark=mark)
    with pytest.raises(JournalDamagedError, match=path) as raised:
        await life.open()
    assert (raised.value.path, raised.value.offset) == (path, offset)
    assert f"offset {offset}" in str(raised.value)
    assert files(device) == content
    await life.disk.aclose()
    return raised.value


# --- the tail ---


async def test_tail_torn_at_any_byte_is_cut_and_everything_before_is_replayed() -> None:
    content = await crashed(b"first", b"second", b"third")
    data = content[FIRST]
    ends = [*group_offsets(data), len(data)]
    for length in range(FILE_HEADER_BYTES, len(data)):
        whole_groups = sum(end <= length for end in ends) - 1
        expected = numbered(b"first", b"second", b"third")[:whole_groups]
        device = await device_with({FIRST: data[:length]})
        assert await replay_of(device) == expected
        assert await replay_of(device) == expected, "what one life has replayed, the next one does"


async def test_torn_group_over_prepared_zeros_is_cut() -> None:
    data = (await crashed(b"first", b"second"))[FIRST]
    second = group_offsets(data)[1]
    for length in range(second, len(data)):
        assert await replay({FIRST: data[:length] + bytes(3_000)}) == numbered(b"first")


async def test_any_lost_page_of_the_last_group_is_a_torn_tail() -> None:
    data = (await crashed(b"first", b"x" * 3_000))[FIRST]
    for start in range(512, len(data), 512):
        assert await replay({FIRST: data[:start] + bytes(512) + data[start + 512 :]}) == numbered(b"first")


async def test_zeros_behind_the_last_group_are_the_end() -> None:
    data = (await crashed(b"first", b"second"))[FIRST]
    assert await replay({FIRST: data + bytes(10_000)}) == numbered(b"first", b"second")


async def test_last_file_with_a_torn_header_is_removed() -> None:
    content = await crashed(b"first")
    header = content[SECOND]
    assert len(header) == FILE_HEADER_BYTES
    for length in range(FILE_HEADER_BYTES):
        device = await device_with({**content, SECOND: header[:length]})
        life = await live(device)
        assert life.replayed == numbered(b"first")
        await life.aclose()
        assert all(decode_file_header(data, path) for path, data in files(device).items())


async def test_unused_files_are_removed_and_their_numbers_used_again() -> None:
    content = await crashed(b"first")
    assert sorted(content) == [FIRST, SECOND]
    device = await device_with(content)
    life = await live(device, seed="other")
    assert life.replayed == numbered(b"first")
    await life.write(b"second")
    await life.aclose()
    assert sorted(files(device)) == [FIRST, SECOND, THIRD]
    assert files(device)[SECOND][:FILE_HEADER_BYTES] != content[SECOND]


async def test_numbers_go_on_behind_files_that_are_gone_and_may_come_back() -> None:
    """A removal whose sync failed is seen by the next life, and undone by a power loss after it."""
    content = await crashed(b"first", b"second")
    removed = content.pop(FIRST)
    device = await device_with(content)
    life = await live(device, mark=2)
    await life.write(b"third")
    await life.crash(Crash.KILL)
    found = files(device)
    assert FIRST not in found
    assert await replay({**found, FIRST: removed}, mark=2) == numbered(b"third", first=3)


async def test_file_that_comes_back_below_the_mark_does_not_make_those_missing_that_were_forgotten_after_it() -> None:
    content = await crashed(*(bytes([n]) * 3_000 for n in range(3)), config=SMALL_FILES)
    *_, last, prepared = sorted(content)
    assert (last, decode_group_header(content[prepared][FILE_HEADER_BYTES:])) == (THIRD, None)
    left = {path: content[path] for path in (FIRST, prepared)}
    assert await replay(left, mark=3) == []
    device = await device_with(left)
    life = await live(device, mark=3)
    await life.write(b"fourth")
    await life.crash(Crash.KILL)
    assert await replay_of(device, mark=3) == numbered(b"fourth", first=4)


async def test_crash_at_any_moment_of_opening_leaves_a_journal_that_opens() -> None:
    content = await crashed(b"first", b"second")
    content[FIRST] += b"torn"
    content[THIRD] = encode_file_header(FileHeader(3, 3, 1))
    for kind in (Crash.KILL, Crash.DROP_UNSYNCED):
        for turns in range(0, 150, 2):
            device = await device_with(content)
            opening = await crashed_while_opening(device, turns, kind)
            assert await replay_of(device, is_begun=True) == numbered(b"first", b"second")
    assert opening.done()
    assert not opening.cancelled(), "the last one was late enough for it to finish"


async def crashed_while_opening(device: SimDevice, turns: int, kind: Crash, mark: int = 0) -> asyncio.Task[Journal]:
    life = Life(device, mark=mark, is_begun=True)
    opening = asyncio.create_task(life.open(), name="journal-opening")
    for _ in range(turns):
        await asyncio.sleep(0)
    await life.crash(kind)
    await asyncio.gather(opening, return_exceptions=True)
    return opening


@pytest.mark.parametrize("torn", [False, True])
async def test_crash_at_any_moment_of_opening_files_that_were_never_used_leaves_one(torn: bool) -> None:
    content = await crashed()
    assert sorted(content) == [FIRST, SECOND]
    if torn:
        content = {FIRST: content[FIRST][:-1]}
    for kind in (Crash.KILL, Crash.DROP_UNSYNCED):
        for turns in range(150):
            device = await device_with(content)
            opening = await crashed_while_opening(device, turns, kind, mark=7)
            assert files(device)
            assert await replay_of(device, mark=7, is_begun=not torn) == []
    assert opening.done()
    assert not opening.cancelled(), "the last one was late enough for it to finish"


async def test_the_file_that_replaces_one_that_was_never_used_is_written_like_any_other() -> None:
    device = await device_with(await crashed())
    life = await live(device, mark=7, seed="other", is_begun=True)
    await life.write(b"eighth")
    await life.wait_prepared()
    await life.crash(Crash.DROP_UNSYNCED)
    assert sorted(files(device)) == [FIRST, SECOND]
    assert await replay_of(device, mark=7, is_begun=True) == numbered(b"eighth", first=8)


async def test_junk_behind_a_closed_journal_is_cut() -> None:
    device = SimDevice()
    life = await live(device)
    await life.write(b"first")
    await life.aclose()
    device = await device_with({FIRST: files(device)[FIRST] + b"junk"})
    for _ in range(2):
        assert await replay_of(device) == numbered(b"first")


async def test_groups_of_a_former_file_in_the_tail_are_not_taken_for_ours() -> None:
    ours = (await crashed(b"first"))[FIRST]
    device = SimDevice()
    life = await live(device, seed="another journal", config=PLAIN)
    await life.write(b"theirs", b"also theirs", b"and this")
    await life.aclose()
    theirs = files(device)[FIRST][FILE_HEADER_BYTES:]
    assert await replay({FIRST: ours + theirs}) == numbered(b"first")
    assert await replay({FIRST: ours + b"junk" + theirs}) == numbered(b"first")


# --- damage ---


async def test_flipped_bit_at_any_byte_of_a_group_that_is_not_the_last_is_damage_at_that_group() -> None:
    data = (await crashed(b"first", b"second", b"third"))[FIRST]
    first, second, third = group_offsets(data)
    for offset in range(first, third):
        damaged = bytearray(data)
        damaged[offset] ^= 0x10
        error = await expect_damage({FIRST: bytes(damaged)}, FIRST, first if offset < second else second)
        assert "an intact one follows" in str(error)


async def test_flipped_bit_in_a_group_over_prepared_zeros_is_damage_at_that_group() -> None:
    config = JournalConfig(file_bytes_max=4_096, group_bytes_max=4_096)
    data = (await crashed(b"first", b"second", b"third", config=config))[FIRST]
    assert len(data) == 4_096
    _, second, third = group_offsets(data)
    for offset in range(second, third):
        damaged = bytearray(data)
        damaged[offset] ^= 0x10
        await expect_damage({FIRST: bytes(damaged)}, FIRST, second)


async def test_zeros_in_place_of_a_group_that_is_not_the_last_are_damage_and_not_the_end() -> None:
    data = (await crashed(b"first", b"second", b"third"))[FIRST]
    _, second, third = group_offsets(data)
    for length in (12, 32, third - second):
        damaged = data[:second] + bytes(length) + data[second + length :]
        await expect_damage({FIRST: damaged}, FIRST, second)


async def test_file_whose_first_sector_was_lost_is_in_use_all_the_same() -> None:
    content = await crashed(b"first", b"second")
    second = group_offsets(content[FIRST])[1]
    content[FIRST] = content[FIRST][:-1] + b"!"
    assert await replay(content) == numbered(b"first"), "torn, as the next file is not in use"
    content[SECOND] += bytes(476) + b"the rest of a torn group"
    await expect_damage(content, FIRST, second)


async def test_flipped_bit_at_any_byte_of_the_header_of_a_used_file_is_damage() -> None:
    data = (await crashed(b"first"))[FIRST]
    for offset in range(FILE_HEADER_BYTES):
        damaged = bytearray(data)
        damaged[offset] ^= 0x10
        await expect_damage({FIRST: bytes(damaged)}, FIRST, 0)


async def test_flipped_bit_at_any_byte_of_a_file_that_is_not_the_last_is_damage_in_that_file() -> None:
    content = await crashed(b"a" * 2_000, b"b" * 3_000, config=SMALL_FILES)
    assert len(content[SECOND]) > FILE_HEADER_BYTES
    last = group_offsets(content[FIRST])[-1]
    for offset in range(last, len(content[FIRST]), 7):
        damaged = bytearray(content[FIRST])
        damaged[offset] ^= 0x10
        await expect_damage({**content, FIRST: bytes(damaged)}, FIRST, last)


async def test_file_that_is_not_the_last_cut_short_is_damage_even_between_groups() -> None:
    content = await crashed(b"a" * 10, b"b" * 2_000, b"c" * 3_000, config=SMALL_FILES)
    second = group_offsets(content[FIRST])[1]
    error = await expect_damage({**content, FIRST: content[FIRST][:second]}, SECOND, FILE_HEADER_BYTES)
    assert "record 2" in str(error) or "records 2 to 2" in str(error)


@pytest.mark.parametrize("left", [b"", b"MNJF" + bytes(6), bytes(5_000)], ids=["empty", "cut off", "zeros"])
async def test_file_in_use_without_its_header_is_damage_as_a_prepared_one_follows_it(left: bytes) -> None:
    content = await crashed(b"first", b"second")
    await expect_damage({**content, FIRST: left}, FIRST, 0)


@pytest.mark.parametrize("left", [b"", b"MNJF" + bytes(6), bytes(5_000)], ids=["empty", "cut off", "zeros"])
async def test_only_file_of_a_journal_that_was_begun_has_a_header(left: bytes) -> None:
    device = await device_with({FIRST: left})
    with pytest.raises(JournalDamagedError, match=FIRST):
        await replay_of(device, is_begun=True)
    assert files(device) == {FIRST: left}
    assert await replay_of(device) == [], "the first start was cut off while it made the file"


async def test_missing_file_in_the_middle_is_damage() -> None:
    content = await crashed(*(bytes([n]) * 3_000 for n in range(3)), config=SMALL_FILES)
    del content[SECOND]
    error = await expect_damage(content, THIRD, 0)
    assert "records 2 to 2 are missing" in str(error)


async def test_missing_last_file_is_damage_as_a_prepared_one_follows_it() -> None:
    content = await crashed(*(bytes([n]) * 3_000 for n in range(2)), config=SMALL_FILES)
    del content[SECOND]
    await expect_damage(content, THIRD, 0)
    await expect_damage({**content, THIRD: b""}, THIRD, 0)


async def test_missing_first_file_is_damage_unless_the_mark_is_behind_it() -> None:
    content = await crashed(*(bytes([n]) * 3_000 for n in range(3)), config=SMALL_FILES)
    del content[FIRST]
    await expect_damage(content, SECOND, FILE_HEADER_BYTES)
    assert await replay(content, mark=1) == numbered(b"\1" * 3_000, b"\2" * 3_000, first=2)


@pytest.mark.parametrize("mark", [0, 3])
async def test_journal_that_was_begun_and_has_no_file_is_damaged(mark: int) -> None:
    spare = {f"{FIRST}.spare": (await crashed(b"first"))[FIRST]}
    for device in (SimDevice(), await device_with({}), await device_with(spare)):
        before = list(device.tree.root.entries)
        life = Life(device, mark=mark, is_begun=True)
        with pytest.raises(JournalDamagedError, match=r"the journal in journal is damaged: all its files are missing"):
            await life.open()
        assert list(device.tree.root.entries) == before
        await life.disk.aclose()


async def test_journal_that_was_not_begun_may_have_no_file_whatever_its_mark() -> None:
    device = SimDevice()
    life = await live(device, mark=3)
    await life.write(b"fourth")
    await life.crash(Crash.DROP_UNSYNCED)
    assert await replay_of(device, mark=3, is_begun=True) == numbered(b"fourth", first=4)


async def test_last_group_that_was_replayed_once_is_missed_when_it_is_damaged_later() -> None:
    device = await device_with(await crashed(b"first", b"second"))
    life = await live(device)
    assert life.replayed == numbered(b"first", b"second")
    await life.crash(Crash.POWER_LOSS)
    content = files(device)
    content[FIRST] = content[FIRST][:-1] + b"!"
    error = await expect_damage(content, FIRST, group_offsets(content[FIRST])[1])
    assert "later files show that it was one" in str(error)


async def test_damage_in_the_last_group_is_noticed_after_the_journal_was_closed() -> None:
    device = SimDevice()
    life = await live(device)
    await life.write(b"first", b"second")
    await life.aclose()
    content = files(device)
    del content[SECOND]
    second = group_offsets(content[FIRST])[1]
    damaged = bytearray(content[FIRST])
    damaged[second + 40] ^= 1
    await expect_damage({FIRST: bytes(damaged)}, FIRST, second)


async def test_repeated_group_is_damage() -> None:
    data = (await crashed(b"first"))[FIRST]
    error = await expect_damage({FIRST: data + data[FILE_HEADER_BYTES:]}, FIRST, len(data))
    assert "record 1 where record 2" in str(error)


async def test_sealed_group_of_unknown_content_is_damage_that_says_so() -> None:
    body = b"\x63" + record_header(RecordKind.ADDS, 0)[1:]
    data = encode_file_header(FileHeader(1, 5, 1)) + group_header(5, 1, 1, len(body), [body]) + body
    error = await expect_damage({FIRST: data}, FIRST, FILE_HEADER_BYTES)
    assert "kind 99" in str(error)


async def test_foreign_file_in_the_directory_is_named_if_it_looks_like_ours_and_else_ignored() -> None:
    content = await crashed(b"first")
    device = await device_with({**content, "journal/notes.txt": b"x"})
    assert await replay_of(device) == numbered(b"first")
    await expect_damage({**content, "journal/1.journal": b"x"}, "journal/1.journal", 0)


async def test_hostile_lengths_and_many_false_beginnings_take_little_memory() -> None:
    data = (await crashed(b"first"))[FIRST]
    header = decode_file_header(data[:FILE_HEADER_BYTES], FIRST)
    assert header is not None
    length = (2**26).to_bytes(4, "big")
    false_beginning = b"MNJG" + length + bytes(8) + header.file_id.to_bytes(8, "big") + b"\xff" * 8
    device = await device_with({FIRST: data + false_beginning * 10_000})
    tracemalloc.start()
    assert await replay_of(device) == numbered(b"first")
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert peak < 30 * 2**20


# --- the mark ---


@pytest.mark.parametrize("mark", range(5))
async def test_replay_begins_behind_the_mark(mark: int) -> None:
    content = await crashed(b"1", b"2", b"3", b"4")
    device = await device_with(content)
    expected = numbered(b"1", b"2", b"3", b"4")[mark:]
    assert await replay_of(device, mark) == expected
    assert await replay_of(device, mark) == expected, "though the rewritten file has no older groups"


async def test_mark_inside_a_group_delivers_the_rest_of_it() -> None:
    device = SimDevice()
    life = await live(device)
    life.submit(b"1", b"2", b"3")
    await life.wait_durable(b"3")
    assert len(life.groups) == 1
    await life.aclose()
    assert await replay_of(device, mark=2) == [(3, b"3")]


async def test_numbers_go_on_behind_a_mark_that_is_ahead_of_the_journal() -> None:
    device = await device_with(await crashed(b"1"))
    life = await live(device, mark=9)
    assert life.replayed == []
    assert life.submit(b"10") == [10]
    await life.wait_durable(b"10")
    await life.aclose()
    assert await replay_of(device, mark=9) == [(10, b"10")]


async def test_groups_larger_than_a_piece_are_read() -> None:
    config = JournalConfig(group_bytes_max=8 * 2**20)
    device = SimDevice()
    life = await live(device, config=config)
    large = bytes(range(256)) * (5 * 2**12)
    await life.write(b"small", large, b"small again")
    await life.aclose()
    assert await replay_of(device) == numbered(b"small", large, b"small again")
