"""Entry log reader: blocks by place, and whole logs from one end to the other.

Order:     a log that has grown since it was opened is opened again, because a File keeps the end it began with. So is
           a log that was cut: a flush that finds no room takes back what it wrote.
Limits:    a bounded number of logs stays open, those used last. A read takes more than the block that was asked for,
           and returns every whole block in it.
Failure:   if a block after the first is damaged or cut off, it is left out; a read of that block reports the damage.
Read next: format.py
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
from collections import OrderedDict
from collections.abc import AsyncIterator, Iterator
from dataclasses import dataclass

from magnetar.errors import FileCutError, LogDamagedError
from magnetar.runtime.disk import File
from magnetar.storage.entry_log.format import (
    BLOCK_HEADER_BYTES,
    ENTRIES,
    FOOTER_BYTES,
    HEADER_BYTES,
    LEDGERS,
    Block,
    body_bytes,
    check_header,
    decode_block,
    decode_footer,
    decode_ledger_map,
    header_version,
    is_block_header,
    log_path,
)
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.frames import by_ledger, scan_frames
from magnetar.storage.index.extents import BlockPlace
from magnetar.wire.bookkeeper.hot_path import AddRun

_SCAN_BYTES = 1 << 20
_SEARCH_BYTES = 1 << 16  # The loop is held while this many damaged bytes are searched.


@dataclass(frozen=True, slots=True)
class Damage:
    """A part of a log that does not consist of blocks."""

    log_id: int
    offset: int
    end: int
    is_tail: bool
    """Whether it reaches to the end of a log that was never finished: a torn flush, or damage that looks like one. Only
    the index can distinguish them: it refers to nothing in a torn flush."""


class EntryLogReader:
    def __init__(self, dirs: LedgerDirs, open_logs_max: int) -> None:
        self._dirs = dirs
        self._open_logs_max = open_logs_max
        self._files: OrderedDict[int, File] = OrderedDict()
        self._opening = asyncio.Lock()  # Opening is rare, and two Files of one path are not allowed.
        self.bytes_read = 0
        self.reads = 0

    async def read_blocks(self, place: BlockPlace, read_ahead_bytes: int = 0) -> tuple[bytes, list[Block]]:
        """Returns the bytes read and their verified blocks: the block of this place first, then those that came with
        it."""
        data = await self._read(place.log_id, place.offset, max(place.size, read_ahead_bytes), needed=place.size)
        block = decode_block(data, 0, place.log_id, place.offset)
        if block.kind != ENTRIES or block.place != place:
            raise LogDamagedError(f"{log_path(place.log_id)}: the block at {place.offset} is not what the index says")
        others = _blocks_after(block, data)
        return data, [block, *itertools.takewhile(lambda other: other.kind == ENTRIES, others)]

    async def ledger_map(self, log_id: int) -> dict[int, int]:
        """Returns bytes per ledger: from the log's end if it was finished, otherwise by reading all of it."""
        found = await self.finished_map(log_id)
        return await self.scanned_map(log_id) if found is None else found

    async def finished_map(self, log_id: int) -> dict[int, int] | None:
        """Returns None if the log was never finished, or its end is damaged."""
        size = await self.size(log_id)
        footer = await self._read(log_id, max(0, size - FOOTER_BYTES), FOOTER_BYTES)
        map_offset = decode_footer(footer, log_id)
        if map_offset is None:
            return None
        data = await self._read(log_id, map_offset, size - FOOTER_BYTES - map_offset)
        try:
            block = decode_block(data, 0, log_id, map_offset)
            return decode_ledger_map(block.body) if block.kind == LEDGERS else None
        except LogDamagedError:
            return None

    async def scanned_map(self, log_id: int) -> dict[int, int]:
        sizes: dict[int, int] = {}
        async for found in self.scan(log_id):
            if isinstance(found, Block) and found.kind == ENTRIES:
                for ledger_id, frames_bytes in ledger_bytes(found):
                    sizes[ledger_id] = sizes.get(ledger_id, 0) + frames_bytes
        return sizes

    async def scan(self, log_id: int) -> AsyncIterator[Block | Damage]:
        """Yields every valid block, and the damage between them. A damaged file header raises: nothing can be
        trusted."""
        size = await self.size(log_id)
        check_header(await self._read(log_id, 0, HEADER_BYTES), log_id)
        end = await self._end_of_blocks(log_id, size)
        offset = HEADER_BYTES
        while offset < end:
            blocks = await self._blocks_at(log_id, offset, end)
            for block in blocks:
                yield block
                offset += block.place.size
            if blocks:
                continue
            following = await self._next_block(log_id, offset + 1, end)
            is_tail = following is None and end == size
            yield Damage(log_id, offset, end if following is None else following, is_tail)
            offset = end if following is None else following

    async def has_header(self, log_id: int) -> bool:
        """Reports whether the log has a header of any version. A flush that a crash ended may leave a log without one,
        and so may damage; only the index can distinguish them."""
        return header_version(await self._read(log_id, 0, HEADER_BYTES)) is not None

    async def size(self, log_id: int) -> int:
        return (await self._fresh_file(log_id, None)).size

    async def forget(self, log_id: int) -> None:
        """Closes the log, which is about to be removed."""
        file = self._files.pop(log_id, None)
        if file is not None:
            await file.aclose()

    async def retire(self, log_id: int) -> None:
        """Closes a log that the directories have forgotten, and does not open it again."""
        async with self._opening:
            await self.forget(log_id)

    async def aclose(self) -> None:
        while self._files:
            _, file = self._files.popitem()
            await file.aclose()

    async def _end_of_blocks(self, log_id: int, size: int) -> int:
        footer = await self._read(log_id, max(0, size - FOOTER_BYTES), FOOTER_BYTES)
        return size if decode_footer(footer, log_id) is None else size - FOOTER_BYTES

    async def _blocks_at(self, log_id: int, offset: int, end: int) -> list[Block]:
        """Returns the valid block at the offset and those that came with it, or an empty list."""
        try:
            data = await self._read(log_id, offset, min(_SCAN_BYTES, end - offset))
            size = BLOCK_HEADER_BYTES + body_bytes(data, log_id, offset)
            if size > len(data):
                data = await self._read(log_id, offset, min(size, end - offset))
            block = decode_block(data, 0, log_id, offset)
        except LogDamagedError:
            return []
        return [block, *_blocks_after(block, data)]

    async def _next_block(self, log_id: int, offset: int, end: int) -> int | None:
        """Finds the next valid block. The checksum of its header covers the place, so a look-alike is not accepted.

        Clients' data may look like a kind at every fourth byte: a candidate is read from the disk only if its header is
        right.
        """
        kinds = [kind.to_bytes(4, "little") for kind in (ENTRIES, LEDGERS)]
        while offset + BLOCK_HEADER_BYTES <= end:
            data = await self._read(log_id, offset, min(_SEARCH_BYTES, end - offset))
            for at in sorted(at for kind in kinds for at in _positions(data, kind)):
                if is_block_header(data, at, log_id, offset + at) and await self._blocks_at(log_id, offset + at, end):
                    return offset + at
            offset += len(data) - BLOCK_HEADER_BYTES + 1  # A header may lie across two pieces.
        return None

    async def _read(self, log_id: int, offset: int, length: int, *, needed: int = 0) -> bytes:
        """Opens the log anew only if the file as it was opened lacks bytes that are needed."""
        file = self._files.get(log_id)
        if file is None or offset + needed > file.size:
            file = await self._fresh_file(log_id, offset + needed)
        else:
            self._files.move_to_end(log_id)
        try:
            data = await file.read(offset, length)
        except FileCutError:
            file = await self._file_instead_of(file, log_id)
            data = await file.read(offset, length)
        self.reads += 1
        self.bytes_read += len(data)
        return data

    async def _file_instead_of(self, cut: File, log_id: int) -> File:
        """Opens a log that is shorter than before; all callers that noticed share one file."""
        known = self._files.get(log_id)
        return known if known is not None and known is not cut else await self._fresh_file(log_id, None)

    async def _fresh_file(self, log_id: int, wanted_end: int | None) -> File:
        async with self._opening:
            known = self._files.get(log_id)
            if known is not None and wanted_end is not None and wanted_end <= known.size:
                return known
            directory = self._dirs.dir_of(log_id)
            if known is not None:
                await self.forget(log_id)
            file = await directory.reading.open(log_path(log_id))
            self._files[log_id] = file
            if len(self._files) > self._open_logs_max:
                await self.forget(next(iter(self._files)))
            return file


def frames_of(block: Block) -> AddRun:
    return scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")


def ledger_bytes(block: Block) -> list[tuple[int, int]]:
    """Returns (ledger, bytes of its frames) for each ledger in this block."""
    run = frames_of(block)
    offsets = [*run.offsets, len(block.body) + run.offsets[0]]
    return [(ledger_id, offsets[end] - offsets[first]) for ledger_id, first, end in by_ledger(run)]


def _blocks_after(block: Block, data: bytes) -> Iterator[Block]:
    """Yields the valid blocks after this one, with which the data begin. One that is not valid ends them: it may only
    be cut off by the end of what was read, and is read again by itself."""
    log_id, offset, at = block.place
    with contextlib.suppress(LogDamagedError):
        while at < len(data):
            block = decode_block(data, at, log_id, offset + at)
            yield block
            at += block.place.size


def _positions(data: bytes, pattern: bytes) -> list[int]:
    found: list[int] = []
    at = data.find(pattern)
    while at >= 0:
        found.append(at)
        at = data.find(pattern, at + 1)
    return found
