"""Damage done to the files of stopped bookies, and which replicas it hits.

Missing:   index and log have lost a block. From the index alone would not do: what stands in the log comes along with
           its neighbours when those are read.
Flipped:   one bit of a block. Cut: the last block of a log is cut off, if it is of the ledgers in question: what is
           flushed when, and so what stands behind what, depends on the time that writing took.
Entries:   larger than a block's size, so each has a block of its own, and each damage hits one replica.
"""

from __future__ import annotations

import os
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Self

from magnetar.runtime.system import SystemRuntime
from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, log_path
from magnetar.storage.index.extents import Extent
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_storage import INDEX, open_rocksdb_index

Replica = tuple[int, int, str]
"""Ledger, entry, bookie."""


@dataclass(frozen=True, slots=True)
class Planted:
    kind: str
    replica: Replica


class StoppedBookie:
    """`async with`: the ledger directory of a bookie that does not run."""

    def __init__(self, directory: Path, bookie_id: str) -> None:
        self._ledgers = directory / "ledgers"
        self._bookie_id = bookie_id

    async def __aenter__(self) -> Self:
        self._index: LocationIndex = await open_rocksdb_index(SystemRuntime(), str(self._ledgers / INDEX))
        return self

    async def __aexit__(self, *_exc: object) -> None:
        await self._index.aclose()

    async def plant(
        self,
        ledgers: list[int],
        random: Random,
        *,
        missing: int,
        flipped: int,
        cut: int,
        hit: Collection[tuple[int, int]] = (),
    ) -> list[Planted]:
        """Leaves the given entries, by ledger and id, as they are."""
        everything = [extent for ledger in await self._index.ledgers() for extent in await self._index.extents(ledger)]
        everything.sort(key=lambda extent: extent.place)
        extents = [extent for extent in everything if extent.ledger_id in ledgers]
        assert all(len(extent.ids) == 1 for extent in extents), "an entry has a block of its own"
        last = {extent.place.log_id: extent for extent in everything}
        extents = [extent for extent in extents if (extent.ledger_id, extent.ids[0]) not in hit]
        ends = random.sample([extent for extent in last.values() if extent in extents], cut)
        others = [extent for extent in extents if extent not in ends]
        chosen = random.sample(others, missing + flipped)
        await self._index.apply(IndexBatch(removed=chosen[:missing]))
        for extent in chosen[:missing]:
            self._overwrite(extent)
        for extent in chosen[missing:]:
            self._flip(extent, random)
        for extent in ends:
            os.truncate(self._ledgers / log_path(extent.place.log_id), extent.place.offset + extent.place.size // 2)
        kinds = ["missing"] * missing + ["flipped"] * flipped + ["cut"] * cut
        return list(self._named(kinds, chosen + ends))

    async def lose(self, ledger_id: int, entry_ids: Sequence[int]) -> None:
        """These entries of a ledger, each of which has a block of its own."""
        extents = [extent for extent in await self._index.extents(ledger_id) if extent.ids[0] in entry_ids]
        assert [list(extent.ids) for extent in extents] == [[entry_id] for entry_id in entry_ids]
        await self._index.apply(IndexBatch(removed=extents))
        for extent in extents:
            self._overwrite(extent)

    def _overwrite(self, extent: Extent) -> None:
        with (self._ledgers / log_path(extent.place.log_id)).open("r+b") as file:
            file.seek(extent.place.offset)
            file.write(bytes(extent.place.size))

    def _flip(self, extent: Extent, random: Random) -> None:
        place = extent.place
        with (self._ledgers / log_path(place.log_id)).open("r+b") as file:
            at = place.offset + random.randrange(BLOCK_HEADER_BYTES, place.size)
            file.seek(at)
            byte = file.read(1)[0]
            file.seek(at)
            file.write(bytes([byte ^ 1 << random.randrange(8)]))

    def _named(self, kinds: list[str], extents: list[Extent]) -> Iterator[Planted]:
        for kind, extent in zip(kinds, extents, strict=True):
            yield Planted(kind, (extent.ledger_id, extent.ids[0], self._bookie_id))
