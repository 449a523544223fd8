"""Entries of one ledger straight from its bookies, in large pieces, several of them on their way at once.

Pieces:    a range of entries that is expected to be about `PIECE_BYTES`, by the mean size of the ledger's entries. One
           that turns out larger than a bookie's answer comes in several answers, in the same place of the order.
Memory:    `PIECES_AHEAD` pieces; payloads are views of the bytes that were received, nothing is copied.
Bound:     what the segment says is confirmed; the ledger's own writer said so, no bookie is asked.
Errors:    BookieUnavailableError if the bookies that have an entry cannot be reached or cannot say: the broker may know
           a way. Entries that are gone or damaged wherever they are raise what ledger/reader.py says.
Exact:     an error comes when every entry before it was given, so an entry that is gone or damaged is the next one.
           Where entries are spread over bookies, a read fails for all that it asks for: it is repeated with half as
           many until it asks for that one alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import Final

from magnetar.errors import (
    BookieUnavailableError,
    EntryAbsentError,
    EntryDamagedError,
    EntryOutOfRangeError,
    EntryUnavailableError,
    LedgerOffloadedError,
    MagnetarError,
    MetadataUnavailableError,
    NoSuchLedgerError,
)
from magnetar.ids import LedgerId
from magnetar.ledger.keys import ledger_keys
from magnetar.ledger.parts import Parts
from magnetar.ledger.reader import LedgerReader
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.versioned import Versioned
from magnetar.spark.cluster_values import SegmentLedger
from magnetar.wire.bookkeeper.frames import Buffer

PIECE_BYTES: Final = 2 * 2**20
PIECES_AHEAD: Final = 4
ANSWER_BYTES_MAX: Final = 4 * 2**20
"""What a bookie is asked for at once: room for entries above the mean. It sends at most 5 MiB."""
PIECE_ENTRIES_MAX: Final = 4_000
_OVERHEAD_BYTES: Final = 40  # An entry's header and length, about.
_OLDER_THAN_STORED: Final = -1  # What is read anew replaces it, whatever its version.

Chunk = tuple[int, list[Buffer]]
"""The id of the first entry, and payloads as they are stored."""


async def read_entries(ledger: SegmentLedger, first: int, last: int, parts: Parts) -> AsyncGenerator[Chunk, None]:
    """Entries `first` … `last`, both included, in order and without a gap."""
    if not 0 <= first <= last < ledger.entries:
        raise EntryOutOfRangeError(
            f"entries {first} to {last} of ledger {ledger.ledger_id}: it has {ledger.entries} that are confirmed"
        )
    reader = _open(ledger, parts)
    step = entries_per_piece(ledger)
    following = first
    pieces: deque[asyncio.Task[_Piece]] = deque()
    loop = asyncio.get_running_loop()
    try:
        while following <= last or pieces:
            while following <= last and len(pieces) < PIECES_AHEAD:
                end = min(following + step - 1, last)
                pieces.append(loop.create_task(_read_piece(reader, following, end)))
                following = end + 1
            piece = await pieces[0]
            pieces.popleft()
            if piece.payloads:
                yield first, piece.payloads
                first += len(piece.payloads)
            if piece.error is not None:
                raise piece.error
    finally:
        for task in pieces:
            task.cancel()
        await asyncio.gather(*pieces, return_exceptions=True)


def entries_per_piece(ledger: SegmentLedger) -> int:
    mean = ledger.size_bytes // max(1, ledger.entries) + _OVERHEAD_BYTES
    return max(1, min(PIECE_BYTES // mean, PIECE_ENTRIES_MAX))


def _open(ledger: SegmentLedger, parts: Parts) -> LedgerReader:
    if not ledger.metadata and not ledger.offloaded:
        raise NoSuchLedgerError(f"ledger {ledger.ledger_id} was deleted, and its topic lists it still")
    if not ledger.metadata:
        raise LedgerOffloadedError(f"ledger {ledger.ledger_id} is not on bookies any more: it was offloaded")
    metadata = decode(LedgerId(ledger.ledger_id), ledger.metadata, node_created_ms=0)
    keys = ledger_keys(metadata, ledger.password, ledger.digest_type)
    return LedgerReader(Versioned(metadata, _OLDER_THAN_STORED), keys, parts)


@dataclass(frozen=True, slots=True)
class _Piece:
    payloads: list[Buffer]
    error: MagnetarError | None = None
    """Why it ends before its last entry."""


async def _read_piece(reader: LedgerReader, first: int, last: int) -> _Piece:
    payloads: list[Buffer] = []
    asked = last - first + 1
    while first <= last:
        asked = min(asked, last - first + 1)
        try:
            found = await reader.read_some(first, first + asked - 1)
        except (EntryAbsentError, EntryDamagedError) as error:
            if asked == 1:
                return _Piece(payloads, error)
            asked //= 2  # It is one of these, and need not be the first.
        except (EntryUnavailableError, MetadataUnavailableError) as error:
            unreachable = BookieUnavailableError(str(error))
            unreachable.__cause__ = error
            return _Piece(payloads, unreachable)
        except MagnetarError as error:
            return _Piece(payloads, error)
        else:
            payloads += [entry.payload for entry in found]
            first += len(found)
    return _Piece(payloads)
