"""Tombstones: deleted ledgers that are still remembered as fenced.

Invariant: a writer that was fenced stays refused for `storage.tombstone_days` after the deletion of its ledger.
Limits:    `storage.tombstones_max`. None is dropped early for it. The entries of further fenced ledgers are deleted,
           and their fences stay as those of living ledgers, until old tombstones expire and the collector comes again.
Failure:   the age is by the wall clock, as it must outlive the process, and that clock may be wrong. Within a process
           it counts no quicker than the loop's clock, so a wall clock that jumps ahead drops no fence. A tombstone from
           the future, left by a clock that was ahead, is made anew with the present time.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Final, NamedTuple

from magnetar.config.storage import StorageConfig
from magnetar.errors import TombstonesFullError
from magnetar.runtime.runtime import Entropy
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.ledger_flags import LedgerFlags

_DAY_MS: Final = 86_400_000
_TOLERANCE_MS: Final = 60_000  # A clock that is corrected by less than this has not jumped.


class Tombstone(NamedTuple):
    ledger_id: int
    flags: LedgerFlags
    deleted_at_ms: int


class Tombstones:
    def __init__(self, index: LocationIndex, entropy: Entropy, config: StorageConfig) -> None:
        self.count = 0
        self._wall_ms, self._loop_s = 0, 0.0  # When the process began.
        self._index = index
        self._entropy = entropy
        self._config = config

    async def load(self) -> None:
        self._wall_ms, self._loop_s = self._entropy.wall_ms(), asyncio.get_running_loop().time()
        self.count = len(await self._all())

    @property
    def is_full(self) -> bool:
        return self.count >= self._config.tombstones_max

    def make(self, flags: LedgerFlags) -> LedgerFlags:
        """Makes one for a fenced ledger that is being deleted, maybe not for the first time."""
        return LedgerFlags(master_key=flags.master_key, fenced=True, deleted_at_ms=self._now_ms())

    def full_error(self, ledger_id: int) -> TombstonesFullError:
        return TombstonesFullError(
            f"the fence of deleted ledger {ledger_id} is kept as that of a living one: {self.count} deleted ledgers "
            "are remembered as fenced, which is storage.tombstones_max; they expire with time, or raise the limit"
        )

    async def due(self, is_in_use: Callable[[int], bool]) -> IndexBatch | None:
        """Drops those that are old enough, and makes those from the future anew. Returns None if there are none."""
        now_ms = self._now_ms()
        before_ms = now_ms - self._config.tombstone_days * _DAY_MS
        found = [each for each in await self._all() if not is_in_use(each.ledger_id)]
        old = [each.ledger_id for each in found if each.deleted_at_ms < before_ms]
        ahead = [each for each in found if each.deleted_at_ms > now_ms]
        anew = {each.ledger_id: dataclasses.replace(each.flags, deleted_at_ms=now_ms) for each in ahead}
        return IndexBatch(dropped_flags=old, flags=anew) if old or anew else None

    async def apply(self, due: IndexBatch) -> int:
        """Applies the batch, and returns how many tombstones are dropped."""
        await self._index.apply(due)
        self.count -= len(due.dropped_flags)
        return len(due.dropped_flags)

    def _now_ms(self) -> int:
        """Returns the wall clock, unless it has run ahead of the loop's since the process began."""
        lived_ms = (asyncio.get_running_loop().time() - self._loop_s) * 1000
        return min(self._entropy.wall_ms(), self._wall_ms + int(lived_ms) + _TOLERANCE_MS)

    async def _all(self) -> list[Tombstone]:
        return [
            Tombstone(ledger_id, flags, flags.deleted_at_ms)
            async for page in self._index.flag_pages()
            for ledger_id, flags in page
            if flags.deleted_at_ms is not None
        ]
