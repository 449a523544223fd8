"""Tombstones: deleted ledgers that are still remembered as fenced.

Invariant: a writer that was fenced stays refused for `storage.tombstone_days` after the deletion of its ledger.
Bound:     `storage.tombstones_max`. None is dropped early for it: further fenced ledgers are not deleted until old ones
           expire, and the garbage collector comes again.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from magnetar.config.storage import StorageConfig
from magnetar.errors import TombstonesFullError
from magnetar.runtime.entropy import Entropy
from magnetar.storage.ledger_flags import LedgerFlags
from magnetar.storage.location_index import IndexBatch, LocationIndex

_DAY_MS: Final = 86_400_000


class Tombstones:
    def __init__(self, index: LocationIndex, entropy: Entropy, config: StorageConfig) -> None:
        self.count = 0
        self._index = index
        self._entropy = entropy
        self._config = config

    async def load(self) -> None:
        self.count = len(await self._all())

    def make(self, ledger_id: int, flags: LedgerFlags) -> LedgerFlags:
        """For a fenced ledger that is being deleted, maybe not for the first time."""
        if flags.deleted_at_ms is None and self.count >= self._config.tombstones_max:
            raise TombstonesFullError(
                f"ledger {ledger_id} is not deleted: {self.count} deleted ledgers are remembered as fenced, which is "
                "storage.tombstones_max; they expire with time, or raise the limit"
            )
        return LedgerFlags(master_key=flags.master_key, fenced=True, deleted_at_ms=self._entropy.wall_ms())

    async def expired(self, is_in_use: Callable[[int], bool]) -> list[int]:
        """Those that are old enough to be dropped."""
        before_ms = self._entropy.wall_ms() - self._config.tombstone_days * _DAY_MS
        old = [ledger_id for ledger_id, deleted_at_ms in await self._all() if deleted_at_ms < before_ms]
        return [ledger_id for ledger_id in old if not is_in_use(ledger_id)]

    async def drop(self, ledger_ids: list[int]) -> None:
        await self._index.apply(IndexBatch(dropped_flags=ledger_ids))
        self.count -= len(ledger_ids)

    async def _all(self) -> list[tuple[int, int]]:
        """(ledger, time of its deletion)."""
        found: list[tuple[int, int]] = []
        first = 0
        while page := await self._index.all_flags(first):
            found.extend(
                (ledger_id, flags.deleted_at_ms) for ledger_id, flags in page if flags.deleted_at_ms is not None
            )
            first = page[-1][0] + 1
        return found
