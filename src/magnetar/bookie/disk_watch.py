"""Disk watch: a full disk makes the bookie read-only; it does not stop it.

Order:     `DiskWatch` measures periodically and passes the verdict to the switch. In the same period it reads what an
           operator has written into the directories (read_only.py), so that a running bookie follows. Unreadable files
           change nothing.
Invariant: `DiskGauge.decide` takes one measurement of every directory. A directory is full above the threshold, and
           stays so until it is below the low water mark: near the limit the state does not flap. A directory that
           cannot be measured counts as full until it can.
Limits:    one full directory makes the bookie read-only. A ledger has its place in one directory, and without the
           journal nothing is acknowledged; Apache calls this readOnlyModeOnAnyDiskFullEnabled. Above the threshold
           there is still room for compaction, which frees more, and for entries of recovery and re-replication; both
           have a floor of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from magnetar.bookie.directories import Directory
from magnetar.bookie.read_only import ReadOnlyReason, ReadOnlySwitch
from magnetar.config.bookie import BookieConfig
from magnetar.errors import DiskError, DiskFullError
from magnetar.runtime.disk import DiskUsage
from magnetar.runtime.metrics import Metrics

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class DiskVerdict:
    """The consequences of one measurement."""

    full: tuple[str, ...] = ()
    almost_full: tuple[str, ...] = ()
    """Directories above the warning, and not full."""
    high_priority_writes: bool = True
    compaction: bool = True

    @property
    def is_read_only(self) -> bool:
        return bool(self.full)


class DiskGauge:
    """Remembers which directories are full; no I/O and no clock."""

    def __init__(self, config: BookieConfig) -> None:
        self._config = config
        self._full: dict[str, bool] = {}

    def decide(self, usages: Mapping[str, DiskUsage | None]) -> DiskVerdict:
        """Decides from path → measurement; None if it failed."""
        for path, usage in usages.items():
            self._full[path] = self._is_full(usage, was_full=self._full.get(path, False))
        full = tuple(path for path in usages if self._full[path])
        warn = self._config.disk_usage_warn_percent
        almost = tuple(path for path, usage in usages.items() if path not in full and _exceeds(usage, warn))
        return DiskVerdict(
            full=full,
            almost_full=almost,
            high_priority_writes=not full or self._has_room(usages, self._config.disk_reserve_high_priority_bytes),
            compaction=not full or self._has_room(usages, self._config.disk_reserve_compaction_bytes),
        )

    def _is_full(self, usage: DiskUsage | None, *, was_full: bool) -> bool:
        limit = (
            self._config.disk_usage_low_water_mark_percent if was_full else self._config.disk_usage_threshold_percent
        )
        if was_full:
            return not _is_below(usage, limit)
        return usage is None or _exceeds(usage, limit)

    def _has_room(self, usages: Mapping[str, DiskUsage | None], reserve_bytes: int) -> bool:
        return all(usage is not None and usage.free_bytes > reserve_bytes for usage in usages.values())


def used_bytes(usage: DiskUsage) -> int:
    return usage.total_bytes - usage.free_bytes


def _exceeds(usage: DiskUsage | None, percent: int) -> bool:
    return usage is not None and used_bytes(usage) * 100 > usage.total_bytes * percent


def _is_below(usage: DiskUsage | None, percent: int) -> bool:
    return usage is not None and used_bytes(usage) * 100 < usage.total_bytes * percent


class DiskWatch:
    """Measures the directories periodically. `check` is awaited once before the bookie registers."""

    def __init__(
        self,
        directories: Sequence[Directory],
        config: BookieConfig,
        switch: ReadOnlySwitch,
        operator_says: Callable[[], Awaitable[bool]] | None = None,
    ) -> None:
        """`operator_says`: whether an operator wants the bookie read-only now; None: not asked."""
        self.verdict = DiskVerdict()
        self.usages: dict[str, DiskUsage | None] = {}
        self._directories = list(directories)
        self._config = config
        self._switch = switch
        self._operator_says = operator_says
        self._gauge = DiskGauge(config)
        self._unobserve: list[Callable[[], None]] = []
        self._task: asyncio.Task[None] | None = None
        self._failure: asyncio.Future[DiskFullError] | None = None

    async def check(self) -> DiskVerdict:
        """Measures now and acts. Raises DiskFullError if a disk is full and the bookie must not turn read-only."""
        self.usages = {directory.path: await _measure(directory) for directory in self._directories}
        before, self.verdict = self.verdict, self._gauge.decide(self.usages)
        self._log(before)
        if self.verdict.full and not self._config.read_only_mode_enabled:
            raise DiskFullError(
                f"{', '.join(self.verdict.full)} is fuller than {self._config.disk_usage_threshold_percent} %, and "
                "bookie.read_only_mode_enabled is false: free some room, or allow the read-only mode"
            )
        self._switch.has_reserve = self.verdict.high_priority_writes
        self._switch.set(ReadOnlyReason.DISK_FULL, self.verdict.is_read_only)
        await self._heed_operator()
        return self.verdict

    async def _heed_operator(self) -> None:
        if self._operator_says is None:
            return
        try:
            self._switch.set(ReadOnlyReason.OPERATOR, await self._operator_says())
        except DiskError as error:
            log.error("the operator's status cannot be read", extra={"why": str(error)})

    def start(self) -> None:
        assert self._task is None
        loop = asyncio.get_running_loop()
        self._failure = loop.create_future()
        self._task = loop.create_task(self._run(), name="bookie-disk-watch")

    async def wait_failed(self) -> DiskFullError:
        """Returns when the bookie must stop; the reason is for the log."""
        assert self._failure is not None, "start first"
        return await asyncio.shield(self._failure)

    def observe(self, metrics: Metrics) -> None:
        for directory in self._directories:
            self._unobserve.append(
                metrics.gauge_callback(
                    "magnetar_bookie_disk_used_ratio",
                    "Used share of each directory's device: 0 is empty, 1 is full.",
                    partial(self._used_ratio, directory.path),
                    {"directory": directory.path},
                )
            )
        self._unobserve.append(
            metrics.gauge_callback(
                "magnetar_bookie_full_directories",
                "Directories that keep the bookie read-only.",
                lambda: len(self.verdict.full),
            )
        )

    async def aclose(self) -> None:
        for end in self._unobserve:
            end()
        self._unobserve.clear()
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.wait([task])

    async def _run(self) -> None:
        assert self._failure is not None
        while True:
            await asyncio.sleep(self._config.disk_check_interval_ms / 1000)
            try:
                await self.check()
            except DiskFullError as error:
                self._failure.set_result(error)
                return

    def _used_ratio(self, path: str) -> float:
        usage = self.usages.get(path)
        return math.nan if usage is None else used_bytes(usage) / max(1, usage.total_bytes)

    def _log(self, before: DiskVerdict) -> None:
        if self.verdict == before:
            return
        for path in self.verdict.full:
            if path not in before.full:
                log.error("%s is full or cannot be measured: no more entries are accepted", path)
        for path in self.verdict.almost_full:
            if path not in before.almost_full:
                log.warning("%s is almost full", path)
        for path in before.full:
            if path not in self.verdict.full:
                log.info("%s has room again", path)


async def _measure(directory: Directory) -> DiskUsage | None:
    with contextlib.suppress(DiskError):
        return await directory.disk.usage()
    log.error("%s cannot be measured", directory.path)
    return None
