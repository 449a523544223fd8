"""Log survey: how much of each entry log is alive.

Measure:   the ledger map at the end of a log says how many bytes each ledger has in it. A ledger counts as alive while
           anything of it is here: that may be too much, never too little.
Unfinished: a log that a crash left without its map is scanned. A scan does not see what is damaged, so its result is
           a hint: only compaction.py, which asks the index, may remove such a log.
Cost:      two reads per log, and only in rounds after which a ledger has gone; a scan once per process.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from magnetar.errors import DiskError, StorageDamagedError
from magnetar.storage.ledger_storage import LedgerStorage


class LogUsage(NamedTuple):
    log_id: int
    total_bytes: int
    """Of entries."""
    live_bytes: int
    is_finished: bool
    """Then its ledger map is the writer's own, and complete."""

    def is_below(self, percent: int) -> bool:
        return self.live_bytes == 0 or self.live_bytes * 100 < self.total_bytes * percent


class Survey:
    """How much of each log is alive. Remembers it as long as no ledger has gone."""

    def __init__(self, storage: LedgerStorage) -> None:
        self._storage = storage
        self._alive: frozenset[int] = frozenset()
        self._known: dict[int, LogUsage] = {}
        self._scanned: dict[int, dict[int, int]] = {}
        """Maps of logs that a crash left unfinished: few, and each cost a scan."""

    async def look(self, on_damage: Callable[[int, Exception], None]) -> list[LogUsage]:
        log_ids = await self._storage.settled_logs()  # First: what is in them is in the index, or deleted.
        alive = await self._alive_ledgers()
        if self._alive - alive:
            self._known.clear()
        self._alive = alive
        known: dict[int, LogUsage] = {}
        for log_id in log_ids:
            try:
                known[log_id] = self._known.get(log_id) or await self._usage(log_id)
            except (StorageDamagedError, DiskError) as error:
                on_damage(log_id, error)
        self._known = known
        self._scanned = {log_id: sizes for log_id, sizes in self._scanned.items() if log_id in known}
        return list(known.values())

    async def _alive_ledgers(self) -> frozenset[int]:
        found: list[int] = []
        while page := await self._storage.list_ledgers(found[-1] + 1 if found else 0):
            found += page
        return frozenset(found)

    async def _usage(self, log_id: int) -> LogUsage:
        logs = self._storage.logs
        sizes = self._scanned.get(log_id)
        is_finished = False
        if sizes is None:
            sizes = await logs.finished_map(log_id)
            is_finished = sizes is not None
        if sizes is None:
            sizes = self._scanned[log_id] = await logs.scanned_map(log_id)
        live = sum([size for ledger_id, size in sizes.items() if ledger_id in self._alive])
        return LogUsage(log_id, sum(sizes.values()), live, is_finished)
