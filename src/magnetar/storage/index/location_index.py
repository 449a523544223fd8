"""LocationIndex: the place of each entry, the flags of each ledger, and the mark up to which this is complete.

Invariant: a batch is all or nothing, and durable when `apply` returns. "Not here" is answered only after everything
           relevant was read and its checksum was right; anything different raises IndexDamagedError.
Format:    "E" + extent key (extents.py) · "F" + ledger_id u64 → flags (storage/ledger_flags.py) · "M" → mark i64,
           crc32c u32 · "L" → the greatest log id that an extent ever had i64, crc32c u32 · 0xff… are the store's own
Failure:   the mark is written with its flush. If the journal's own mark is ahead of this one, the index has lost synced
           data: storage/ledger_storage.py refuses to open it.
Threads:   reads have one lane, writes another: a read does not wait for a sync.
Read next: ordered_store.py
"""

from __future__ import annotations

import struct
from collections.abc import AsyncIterator, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.errors import IndexDamagedError
from magnetar.runtime.runtime import Offload
from magnetar.storage.index.extents import ID_MAX, REMEDY, SPAN, Extent, decode, encode, key_of
from magnetar.storage.index.ordered_store import Changes, OrderedStore
from magnetar.storage.ledger_flags import LedgerFlags, decode_flags, encode_flags

_EXTENT: Final = b"E"
_FLAGS: Final = b"F"
_MARK: Final = b"M"
_LAST_LOG: Final = b"L"
_NO_LOG: Final = -1
_LEDGER = struct.Struct(">Q")
_POSITION = struct.Struct(">QQ")  # Ledger, entry: the head of an extent's key.
_PLACE_MAX: Final = b"\xff" * 8
_NUMBER_VALUE = struct.Struct("<qI")
_ENCODED_AT_ONCE: Final = 500  # About a millisecond: while the lane's thread computes, the loop stands still.
_NUMBER = struct.Struct("<q")


@dataclass(slots=True)
class IndexBatch:
    """Changes that are applied at once. Ledgers are deleted first, so a batch may delete one and leave its
    tombstone."""

    deleted_ledgers: list[int] = field(default_factory=list)
    removed: list[Extent] = field(default_factory=list)
    extents: list[Extent] = field(default_factory=list)
    flags: dict[int, LedgerFlags] = field(default_factory=dict)
    dropped_flags: list[int] = field(default_factory=list)
    mark: int | None = None
    last_log: int | None = None
    """The greatest log id that is known, if no extent has it."""


class EntryIds(NamedTuple):
    ids: list[int]
    """All ids from the one asked for up to `following`, ascending."""
    following: int | None
    """The first id of the next page; None at the end."""


class LocationIndex:
    def __init__(self, store: OrderedStore, reading: Offload, writing: Offload) -> None:
        """Owns all three arguments."""
        self._store = store
        self._reading = reading
        self._writing = writing
        self._last_log: int | None = None  # The stored value, or the one about to be stored; None: not looked up yet.

    async def apply(self, batch: IndexBatch) -> None:
        changes = _changes(batch)
        for first in range(0, len(batch.extents), _ENCODED_AT_ONCE):
            changes.put += await self._writing(_encoded, batch.extents[first : first + _ENCODED_AT_ONCE])
        if self._last_log is None:
            stored = await self.last_log()
            if self._last_log is None:  # Otherwise another batch was faster.
                self._last_log = _NO_LOG if stored is None else stored
        last_log = max([extent.place.log_id for extent in batch.extents], default=_NO_LOG)
        last_log = max(last_log, _NO_LOG if batch.last_log is None else batch.last_log)
        if last_log > self._last_log:  # No await from here to the lane: a batch with a lesser id must not come after.
            self._last_log = last_log
            changes.put.append((_LAST_LOG, _sealed(last_log)))
        try:
            await self._writing(self._store.write, changes)
        except BaseException:
            self._last_log = None
            raise

    async def find(self, ledger_id: int, entry_id: int) -> Extent | None:
        """Returns one extent that holds the entry."""
        return await self._reading(_find, self._store, ledger_id, entry_id)

    async def find_all(self, ledger_id: int, entry_id: int) -> list[Extent]:
        """Returns every extent that holds the entry: for when one of them turns out to be damaged."""
        return await self._reading(_find_all, self._store, ledger_id, entry_id)

    async def present(self, extents: Sequence[Extent]) -> list[bool]:
        """Reports for each extent whether the index has it, in this very place."""
        found: list[bool] = []
        for first in range(0, len(extents), _ENCODED_AT_ONCE):
            found += await self._reading(_present, self._store, extents[first : first + _ENCODED_AT_ONCE])
        return found

    async def last_entry(self, ledger_id: int) -> int | None:
        return await self._reading(_last_entry, self._store, ledger_id)

    async def extents(self, ledger_id: int, first: int = 0, limit: int = 1000) -> list[Extent]:
        """Returns extents in order of their first entry, the first of which begins at `first` or after it."""
        return await self._reading(_extents, self._store, ledger_id, first, limit)

    async def entry_ids(self, ledger_id: int, first: int = 0, limit: int = 10_000) -> EntryIds:
        """Returns about `limit` ids from `first` on, in order, and the id at which the next page begins."""
        return await self._reading(_entry_ids, self._store, ledger_id, first, limit)

    async def ledgers(self, first: int = 0, limit: int = 1000) -> list[int]:
        """Returns ledgers that have entries here, in order, from `first` on."""
        return await self._reading(_ledgers, self._store, first, limit)

    async def flags(self, ledger_id: int) -> LedgerFlags | None:
        return await self._reading(_flags, self._store, ledger_id)

    async def all_flags(self, first: int = 0, limit: int = 1000) -> list[tuple[int, LedgerFlags]]:
        """Returns flags in order of ledgers, from `first` on; tombstones too."""
        return await self._reading(_all_flags, self._store, first, limit)

    async def flag_pages(self) -> AsyncIterator[list[tuple[int, LedgerFlags]]]:
        """Yields all flags, in pages of `all_flags`."""
        first = 0
        while page := await self.all_flags(first):
            yield page
            first = page[-1][0] + 1

    async def extent_pages(self) -> AsyncIterator[list[Extent]]:
        """Yields pages of extents, each of one ledger, in order of ledgers and of first entries."""
        ledger = 0
        while ledgers := await self.ledgers(ledger):
            for ledger_id in ledgers:
                first = 0
                while extents := await self.extents(ledger_id, first):
                    yield extents
                    first = extents[-1].ids[0] + 1
            ledger = ledgers[-1] + 1

    async def mark(self) -> int | None:
        """Returns the mark up to which everything is in the index; None before the first flush."""
        return await self._reading(_number, self._store, _MARK, "its mark")

    async def last_log(self) -> int | None:
        """Returns the greatest id of a log that an extent ever had; None before the first."""
        return await self._reading(_number, self._store, _LAST_LOG, "the id of its last log")

    async def aclose(self) -> None:
        await self._writing(self._store.close)
        await self._reading.aclose()
        await self._writing.aclose()


def _encoded(extents: list[Extent]) -> list[tuple[bytes, bytes]]:
    return [(_EXTENT + key, value) for key, value in map(encode, extents)]


def _changes(batch: IndexBatch) -> Changes:
    """Returns all changes but the extents."""
    changes = Changes()
    for ledger_id in batch.deleted_ledgers:
        changes.removed_ranges.append((_EXTENT + _LEDGER.pack(ledger_id), _EXTENT + _LEDGER.pack(ledger_id + 1)))
        changes.removed.append(_FLAGS + _LEDGER.pack(ledger_id))
    changes.removed.extend(_FLAGS + _LEDGER.pack(ledger_id) for ledger_id in batch.dropped_flags)
    changes.removed.extend(_EXTENT + key_of(extent) for extent in batch.removed)
    put = changes.put
    put.extend((_FLAGS + _LEDGER.pack(ledger), encode_flags(ledger, flags)) for ledger, flags in batch.flags.items())
    if batch.mark is not None:
        put.append((_MARK, _sealed(batch.mark)))
    return changes


def _sealed(number: int) -> bytes:
    packed = _NUMBER.pack(number)
    return packed + struct.pack("<I", crc32c(packed))


def _matching(store: OrderedStore, ledger_id: int, entry_id: int) -> Iterator[Extent]:
    """Searches downwards from the nearest extent that begins before the entry: almost always the first one has it."""
    if not (0 <= ledger_id <= ID_MAX and 0 <= entry_id <= ID_MAX):
        return
    last = _EXTENT + _POSITION.pack(ledger_id, entry_id) + _PLACE_MAX
    first = _EXTENT + _POSITION.pack(ledger_id, max(0, entry_id - SPAN + 1))
    for key, value in store.descending(last, first):
        extent = decode(key[1:], value)
        if extent.holds(entry_id):
            yield extent


def _find(store: OrderedStore, ledger_id: int, entry_id: int) -> Extent | None:
    return next(_matching(store, ledger_id, entry_id), None)


def _find_all(store: OrderedStore, ledger_id: int, entry_id: int) -> list[Extent]:
    return list(_matching(store, ledger_id, entry_id))


def _present(store: OrderedStore, extents: Sequence[Extent]) -> list[bool]:
    return [_is_present(store, extent) for extent in extents]


def _is_present(store: OrderedStore, extent: Extent) -> bool:
    value = store.get(_EXTENT + key_of(extent))
    if value is None:
        return False
    if decode(key_of(extent), value) != extent:
        raise IndexDamagedError(
            f"location index: ledger {extent.ledger_id}, from entry {extent.ids[0]} on, it disagrees with the entry "
            f"log; {REMEDY}"
        )
    return True


def _last_entry(store: OrderedStore, ledger_id: int) -> int | None:
    """The extent that begins last need not end last; one that begins SPAN before another's end cannot be the last."""
    if not 0 <= ledger_id <= ID_MAX:
        return None
    found: int | None = None
    last = _EXTENT + _POSITION.pack(ledger_id, ID_MAX) + _PLACE_MAX
    for key, value in store.descending(last, _EXTENT + _LEDGER.pack(ledger_id)):
        extent = decode(key[1:], value)
        if found is not None and extent.ids[0] + SPAN <= found:
            break
        found = extent.ids[-1] if found is None else max(found, extent.ids[-1])
    return found


def _extents(store: OrderedStore, ledger_id: int, first: int, limit: int) -> list[Extent]:
    if not 0 <= ledger_id <= ID_MAX:
        return []
    found: list[Extent] = []
    begin = _EXTENT + _POSITION.pack(ledger_id, first)
    for key, value in store.ascending(begin, _EXTENT + _LEDGER.pack(ledger_id + 1)):
        if len(found) >= limit and key[9:17] != _LEDGER.pack(found[-1].ids[0]):
            break  # Never between two of the same beginning: the caller continues after the last first.
        found.append(decode(key[1:], value))
    return found


def _entry_ids(store: OrderedStore, ledger_id: int, first: int, limit: int) -> EntryIds:
    """Looks SPAN back for extents that reach here, so a page is right even after a compaction."""
    if not 0 <= ledger_id <= ID_MAX:
        return EntryIds([], None)
    found: set[int] = set()
    begin = _EXTENT + _POSITION.pack(ledger_id, max(0, first - SPAN + 1))
    for key, value in store.ascending(begin, _EXTENT + _LEDGER.pack(ledger_id + 1)):
        ids = decode(key[1:], value).ids
        if len(found) >= limit and ids[0] > first:
            following = ids[0]
            return EntryIds(sorted(entry_id for entry_id in found if first <= entry_id < following), following)
        found.update(ids)
    return EntryIds(sorted(entry_id for entry_id in found if entry_id >= first), None)


def _ledgers(store: OrderedStore, first: int, limit: int) -> list[int]:
    found: list[int] = []
    while len(found) < limit and first <= ID_MAX:
        begin, end = _EXTENT + _LEDGER.pack(first), _EXTENT + _LEDGER.pack(ID_MAX + 1)
        entry = next(store.ascending(begin, end), None)
        if entry is None:
            break
        found.append(_LEDGER.unpack_from(entry[0], 1)[0])
        first = found[-1] + 1
    return found


def _flags(store: OrderedStore, ledger_id: int) -> LedgerFlags | None:
    if not 0 <= ledger_id <= ID_MAX:
        return None
    value = store.get(_FLAGS + _LEDGER.pack(ledger_id))
    return None if value is None else decode_flags(ledger_id, value)


def _all_flags(store: OrderedStore, first: int, limit: int) -> list[tuple[int, LedgerFlags]]:
    found: list[tuple[int, LedgerFlags]] = []
    begin, end = _FLAGS + _LEDGER.pack(first), _FLAGS + _LEDGER.pack(ID_MAX + 1)
    for key, value in store.ascending(begin, end):
        ledger_id = _LEDGER.unpack_from(key, 1)[0]
        found.append((ledger_id, decode_flags(ledger_id, value)))
        if len(found) >= limit:
            break
    return found


def _number(store: OrderedStore, key: bytes, what: str) -> int | None:
    value = store.get(key)
    if value is None:
        return None
    if len(value) != _NUMBER_VALUE.size or _NUMBER_VALUE.unpack(value)[1] != crc32c(value[: _NUMBER.size]):
        raise IndexDamagedError(f"location index: {what} has a wrong checksum; {REMEDY}")
    number: int = _NUMBER_VALUE.unpack(value)[0]
    return number
