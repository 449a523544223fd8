"""The one form in which entries are stored: v2 add frames, as they came.

Format:    length u32 | word u32 | master key 20 | entry (ledger_id i64 | entry_id i64 | LAC i64 | length i64 | …)
Purpose:   entries are lent as views of the chunk they are in, and `lent` decides when a copy is better. A view keeps
           its whole chunk in memory, and no cache counts the chunk any more once it is evicted or flushed.
           A client that reads one small entry from each of many chunks, and is slow to take the answers, would keep all
           of these chunks.
Invariant: a lent part keeps at most `KEPT_PER_BYTE` times its own size in memory.
Limits:    only small parts of large chunks are copied. A reader in sequence takes most of a chunk, and gets views.
Read next: magnetar/wire/bookkeeper/hot_path.py; reads.py, write_cache.py
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.errors import LogDamagedError
from magnetar.runtime.disk import Buffer
from magnetar.wire.bookkeeper.frames import MASTER_KEY_BYTES
from magnetar.wire.bookkeeper.hot_path import AddRun, parse_context, scan_adds

ENTRY_OFFSET: Final = 28
"""Offset of the entry in its frame, after length, word and master key."""

FRAME_BYTES_MAX: Final = (1 << 24) - 1
"""What a location can hold; the code that received the frame checked the real limit."""

_ADD_WORD: Final = 0x0201_0000  # Version 2, operation ADD, no flags.


def add_frame(master_key: bytes, entry: Buffer) -> bytes:
    """Returns a frame around an entry that came in another form: a v3 add, a recovery add, a copy from another
    bookie."""
    assert len(master_key) == MASTER_KEY_BYTES, "a master key has 20 bytes"
    return struct.pack(">II20s", ENTRY_OFFSET - 4 + len(entry), _ADD_WORD, master_key) + entry


def scan_frames(frames: Buffer, where: str) -> AddRun:
    """Scans all frames. Their checksum was right, so anything but whole add frames is a bug of the writer."""
    run = scan_adds(frames, 0, len(frames), FRAME_BYTES_MAX)
    if run.end != len(frames):
        raise LogDamagedError(f"{where}: not an add frame at byte {run.end} of a block whose checksum is right")
    return run


def by_ledger(run: AddRun) -> list[tuple[int, int, int]]:
    """Returns (ledger, index of its first frame, index after its last) for each stretch of one ledger."""
    stretches: list[tuple[int, int, int]] = []
    bounds = [*run.firsts, len(run.entry_ids)]
    for index, context in enumerate(run.contexts):
        ledger_id = parse_context(context).ledger_id
        if stretches and stretches[-1][0] == ledger_id:  # The same ledger with other flags or another key.
            stretches[-1] = (ledger_id, stretches[-1][1], bounds[index + 1])
        else:
            stretches.append((ledger_id, bounds[index], bounds[index + 1]))
    return stretches


def keys_of(run: AddRun) -> list[tuple[int, bytes]]:
    """Returns (ledger, master key) for each context."""
    return [parse_context(context)[:2] for context in run.contexts]


KEPT_PER_BYTE: Final = 4  # Below this, a copy would cost more time than it saves memory.


def lent(entry: memoryview) -> Buffer:
    """Returns the entry as it is, or as a copy if it is a small part of its chunk."""
    return entry if len(entry) * KEPT_PER_BYTE >= _chunk_bytes(entry) else bytes(entry)


def lend(parts: list[Buffer], first: int = 0) -> None:
    """Replaces views by copies, from `first` on, where they are a small part of their chunk together.

    Views of one chunk count together if no view of another chunk is between them. Other buffers stay as they are.
    """
    chunk: object = None
    used = 0
    begin = first
    for index in range(first, len(parts)):
        part = parts[index]
        if type(part) is not memoryview:
            continue
        if part.obj is not chunk:
            _copy_if_small(parts, begin, index, used)
            chunk, used, begin = part.obj, 0, index
        used += len(part)
    _copy_if_small(parts, begin, len(parts), used)


def _copy_if_small(parts: list[Buffer], begin: int, end: int, used: int) -> None:
    """Copies the views between the two, which are all of one chunk, if the `used` bytes are a small part of it."""
    first = parts[begin] if begin < end else b""
    if type(first) is memoryview and used * KEPT_PER_BYTE < _chunk_bytes(first):
        for index in range(begin, end):
            if type(parts[index]) is memoryview:
                parts[index] = bytes(parts[index])


def _chunk_bytes(view: memoryview) -> int:
    chunk = view.obj
    return len(chunk) if isinstance(chunk, bytes | bytearray) else view.nbytes
