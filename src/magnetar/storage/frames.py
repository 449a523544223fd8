"""The one form in which entries are stored: v2 add frames, as they came.

Frame:     length u32 | word u32 | master key 20 | entry (ledger_id i64 | entry_id i64 | LAC i64 | length i64 | …)
Read next: magnetar/wire/bookkeeper/hot_path.py
"""

from __future__ import annotations

import struct
from typing import Final

from magnetar.errors import LogDamagedError
from magnetar.runtime.disk import Buffer
from magnetar.wire.bookkeeper.hot_path import AddRun, parse_context, scan_adds
from magnetar.wire.bookkeeper.packet import MASTER_KEY_BYTES

ENTRY_OFFSET: Final = 28
"""Of the entry in its frame: length, word, master key."""

FRAME_BYTES_MAX: Final = (1 << 24) - 1  # Whoever took the frame in checked the real limit; this is what locations hold.

_ADD_WORD: Final = 0x0201_0000  # Version 2, operation ADD, no flags.


def add_frame(master_key: bytes, entry: Buffer) -> bytes:
    """A frame around an entry that came in another form: a v3 add, a recovery add, a copy from another bookie."""
    assert len(master_key) == MASTER_KEY_BYTES, "a master key has 20 bytes"
    return struct.pack(">II20s", ENTRY_OFFSET - 4 + len(entry), _ADD_WORD, master_key) + entry


def scan_frames(frames: Buffer, where: str) -> AddRun:
    """All of them; their checksum was right, so anything but whole add frames means that we wrote nonsense."""
    run = scan_adds(frames, 0, len(frames), FRAME_BYTES_MAX)
    if run.end != len(frames):
        raise LogDamagedError(f"{where}: not an add frame at byte {run.end} of a block whose checksum is right")
    return run


def by_ledger(run: AddRun) -> list[tuple[int, int, int]]:
    """(ledger, index of its first frame, index behind its last) for each stretch of one ledger."""
    stretches: list[tuple[int, int, int]] = []
    bounds = [*run.firsts, len(run.entry_ids)]
    for index, context in enumerate(run.contexts):
        ledger_id = parse_context(context).ledger_id
        if stretches and stretches[-1][0] == ledger_id:  # The same ledger with other flags or another key.
            stretches[-1] = (ledger_id, stretches[-1][1], bounds[index + 1])
        else:
            stretches.append((ledger_id, bounds[index], bounds[index + 1]))
    return stretches
