"""Entries of one ledger straight from its bookies, in large pieces, several of them in flight at once.

Order:     a piece is a range of entries that is expected to be about `PIECE_BYTES`, by the mean size of the ledger's
           entries. If it is larger than a bookie's answer, it comes in several answers, in the same place of the order.
Limits:    `PIECES_AHEAD` pieces; payloads are views of the bytes that were received, nothing is copied. The end is the
           confirmed entry of the segment, which the ledger's own writer reported; no bookie is asked.
Failure:   BookieUnavailableError if the bookies that have an entry cannot be reached or cannot answer: the broker may
           know another way. Entries that are lost or damaged everywhere raise the errors of ledger/reading/reader.py.
           An error comes when every entry before it was returned, so the lost or damaged entry is the next one. Where
           entries are spread over bookies, a read fails for all its entries: it is repeated with half as many until it
           asks for that one alone.
"""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncGenerator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

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
from magnetar.ledger.context import LedgerContext
from magnetar.ledger.metadata.keys import ledger_keys
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.ledger_metadata import Versioned
from magnetar.wire.bookkeeper.frames import Buffer

if TYPE_CHECKING:
    from magnetar.spark.cluster import SegmentLedger

PIECE_BYTES: Final = 2 * 2**20
PIECES_AHEAD: Final = 4
ANSWER_BYTES_MAX: Final = 4 * 2**20
"""The bytes of one request to a bookie: room for entries above the mean. It sends at most 5 MiB."""
PIECE_ENTRIES_MAX: Final = 4_000
_OVERHEAD_BYTES: Final = 40  # An entry's header and length, about.
_OLDER_THAN_STORED: Final = -1  # Metadata that is read anew replaces it, whatever its version.

Chunk = tuple[int, list[Buffer]]
"""The id of the first entry, and payloads as they are stored."""


async def read_entries(
    ledger: SegmentLedger, first: int, last: int, context: LedgerContext
) -> AsyncGenerator[Chunk, None]:
    """Yields entries `first` … `last`, both included, in order and without a gap."""
    if not 0 <= first <= last < ledger.entries:
        raise EntryOutOfRangeError(
            f"entries {first} to {last} of ledger {ledger.ledger_id}: it has {ledger.entries} confirmed ones"
        )
    reader = _open(ledger, context)
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


def _open(ledger: SegmentLedger, context: LedgerContext) -> LedgerReader:
    if not ledger.metadata and not ledger.offloaded:
        raise NoSuchLedgerError(f"ledger {ledger.ledger_id} was deleted, but its topic still lists it")
    if not ledger.metadata:
        raise LedgerOffloadedError(f"ledger {ledger.ledger_id} is not on bookies any more: it was offloaded")
    metadata = decode(LedgerId(ledger.ledger_id), ledger.metadata, node_created_ms=0)
    keys = ledger_keys(metadata, ledger.password, ledger.digest_type)
    return LedgerReader(Versioned(metadata, _OLDER_THAN_STORED), keys, context)


@dataclass(frozen=True, slots=True)
class _Piece:
    payloads: list[Buffer]
    error: MagnetarError | None = None
    """The reason why it ends before its last entry."""


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
            asked //= 2  # One of these fails, and need not be the first.
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
