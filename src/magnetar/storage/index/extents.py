"""Extents: which entries of a ledger are in which block of which log. The index consists of them.

Purpose:   one key per block and ledger instead of one per entry: with 1 KiB entries and 64 KiB blocks that is a
           sixty-fourth of the keys, and reading a block is what verifies it anyway.
Invariant: an extent's ids ascend, and its last is less than SPAN above its first. So a search for an entry looks only
           at extents that begin within SPAN below it.
Format:    key: ledger_id u64 | first entry u64 | log_id u32 | block offset u32, big-endian: sorted by ledger and entry;
           a place has one key, so writing it again changes nothing
           value: block bytes u32 | count u16 | deltas u16 × count, left out if the ids have no gaps | crc32c u32 of
           key and value, little-endian
"""

from __future__ import annotations

import struct
import sys
from array import array
from bisect import bisect_left
from collections.abc import Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from magnetar.errors import IndexDamagedError

SPAN: Final = 1024  # A look-up for an absent entry reads at most this many extents.
ID_MAX: Final = (1 << 63) - 1

KEY = struct.Struct(">QQII")
_FIXED = struct.Struct("<IH")
_CHECKSUM = struct.Struct("<I")
_DELTA_BYTES: Final = 2

Ids: TypeAlias = range | tuple[int, ...]


class BlockPlace(NamedTuple):
    log_id: int
    offset: int
    size: int
    """Bytes on disk, the block's header included."""


class Extent(NamedTuple):
    ledger_id: int
    ids: Ids
    place: BlockPlace

    def holds(self, entry_id: int) -> bool:
        if isinstance(self.ids, range):
            return entry_id in self.ids
        index = bisect_left(self.ids, entry_id)
        return index < len(self.ids) and self.ids[index] == entry_id


def extents_of(ledger_id: int, entry_ids: Sequence[int], place: BlockPlace) -> Sequence[Extent]:
    """Cuts ascending ids into extents. The result for a block is the same for flush, rebuild and compaction."""
    if entry_ids[-1] - entry_ids[0] < SPAN:
        return (Extent(ledger_id, _ids(entry_ids), place),)
    extents: list[Extent] = []
    begin = 0
    while begin < len(entry_ids):
        end = bisect_left(entry_ids, entry_ids[begin] + SPAN, begin)
        extents.append(Extent(ledger_id, _ids(entry_ids[begin:end]), place))
        begin = end
    return extents


def _ids(entry_ids: Sequence[int]) -> Ids:
    first, last = entry_ids[0], entry_ids[-1]
    return range(first, last + 1) if last - first == len(entry_ids) - 1 else tuple(entry_ids)


def key_of(extent: Extent) -> bytes:
    return KEY.pack(extent.ledger_id, extent.ids[0], extent.place.log_id, extent.place.offset)


def encode(extent: Extent) -> tuple[bytes, bytes]:
    ledger_id, ids, (log_id, offset, size) = extent
    key = KEY.pack(ledger_id, ids[0], log_id, offset)
    value = _FIXED.pack(size, len(ids))
    if not isinstance(ids, range):
        first = ids[0]
        value += _little(array("H", [entry_id - first for entry_id in ids])).tobytes()
    return key, value + _CHECKSUM.pack(crc32c(value, crc32c(key)))


def decode(key: bytes, value: bytes) -> Extent:
    if len(key) != KEY.size or len(value) < _FIXED.size + _CHECKSUM.size:
        raise IndexDamagedError(f"location index: key {key.hex()} has a value of {len(value)} bytes; {REMEDY}")
    ledger_id, first, log_id, offset = KEY.unpack(key)
    body = value[: -_CHECKSUM.size]
    if _CHECKSUM.unpack_from(value, len(body))[0] != crc32c(body, crc32c(key)):
        raise IndexDamagedError(
            f"location index: ledger {ledger_id}, the locations from entry {first} on have a wrong checksum; {REMEDY}"
        )
    size, count = _FIXED.unpack_from(body)
    place = BlockPlace(log_id, offset, size)
    if len(body) == _FIXED.size and count:
        return Extent(ledger_id, range(first, first + count), place)
    if len(body) != _FIXED.size + count * _DELTA_BYTES or not count:
        raise IndexDamagedError(
            f"location index: ledger {ledger_id}, the locations from entry {first} on have a wrong length; {REMEDY}"
        )
    deltas = array("H")
    deltas.frombytes(body[_FIXED.size :])
    return Extent(ledger_id, tuple([first + delta for delta in _little(deltas)]), place)


REMEDY: Final = "stop the bookie and rebuild the index from the entry logs: magnetar bookie index rebuild"


def _little(deltas: array[int]) -> array[int]:
    if sys.byteorder == "big":
        deltas.byteswap()
    return deltas
