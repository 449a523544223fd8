"""Read-ahead: all entries of one ledger out of what one read of a log brought.

Logs are sorted by ledger, so what follows an entry in the file is what its reader asks for next.
Only the ledger that was asked for: what else is in a block may have been deleted since.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from magnetar.storage.entry_log_format import BLOCK_HEADER_BYTES, Block, log_path
from magnetar.storage.frames import by_ledger, scan_frames


class LedgerRun(NamedTuple):
    ledger_id: int
    data: bytes
    entry_ids: list[int]
    offsets: list[int]
    """Of the entries in `data`."""
    lengths: list[int]

    def get(self, entry_id: int) -> memoryview | None:
        try:
            index = self.entry_ids.index(entry_id)
        except ValueError:
            return None
        return memoryview(self.data)[self.offsets[index] : self.offsets[index] + self.lengths[index]]


def ledger_run(ledger_id: int, data: bytes, blocks: Sequence[Block]) -> LedgerRun:
    """From the first block on, up to the first that has nothing of the ledger."""
    run = LedgerRun(ledger_id, data, [], [], [])
    for block in blocks:
        before = len(run.entry_ids)
        _take(run, block, block.place.offset - blocks[0].place.offset + BLOCK_HEADER_BYTES)
        if len(run.entry_ids) == before:
            break
    return _trimmed(run)


def _take(run: LedgerRun, block: Block, shift: int) -> None:
    frames = scan_frames(block.body, f"{log_path(block.place.log_id)} at {block.place.offset}")
    for ledger_id, first, end in by_ledger(frames):
        if ledger_id == run.ledger_id:
            run.entry_ids.extend(frames.entry_ids[first:end])
            run.offsets.extend([shift + offset for offset in frames.offsets[first:end]])
            run.lengths.extend(frames.lengths[first:end])


def _trimmed(run: LedgerRun) -> LedgerRun:
    """A copy of the part that is used, where keeping the whole would mostly keep what is not."""
    if not run.entry_ids:
        return run
    start, end = run.offsets[0], run.offsets[-1] + run.lengths[-1]
    if end - start > len(run.data) // 2:
        return run
    offsets = [offset - start for offset in run.offsets]
    return LedgerRun(run.ledger_id, run.data[start:end], run.entry_ids, offsets, run.lengths)
