"""The reasons why a bookie accepts no entries: a full disk, an operator, the configuration. None of them stops it.

Invariant: the bookie is read-only as long as any reason holds; none undoes another. Entries of recovery and
           re-replication are accepted while the disks have their reserve.
           `DiskGauge.decide` takes one measurement of every directory. A directory is full above the threshold, and
           stays so until it is below the low water mark: near the limit the state does not flap. A directory that
           cannot be measured counts as full until it can.
Format:    only the operator's reason is kept: BOOKIE_STATUS in every ledger directory, `1,READ_ONLY,milliseconds,true`
           as Apache writes it (its persistBookieStatusEnabled; here always on). The newest counts, so one that could
           not be written is outvoted.
Order:     `DiskWatch` measures periodically and on every start. In the same period it reads the operator's status, and
           never writes it: an operator needs no lock to write. Unreadable files change nothing.
Limits:    one full directory makes the bookie read-only. A ledger has its place in one directory, and without the
           journal nothing is acknowledged; Apache calls this readOnlyModeOnAnyDiskFullEnabled. Above the threshold
           there is still room for compaction, which frees more, and for entries of recovery and re-replication; both
           have a floor of their own.
"""

from __future__ import annotations

import asyncio
import contextlib
import enum
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from magnetar.bookie.directories import STATUS_FILE, BookieDirectories, Directory
from magnetar.config.bookie import BookieConfig
from magnetar.errors import DiskError, DiskFullError
from magnetar.runtime.disk import DiskUsage
from magnetar.runtime.gather import cancel_all
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.runtime import Entropy

log = logging.getLogger(__name__)

_LAYOUT_VERSION: Final = "1"
_MODES: Final = {"READ_ONLY": True, "READ_WRITE": False}


class ReadOnlyReason(enum.Enum):
    DISK_FULL = "disk full"
    OPERATOR = "operator"
    CONFIGURED = "configured"
    DECOMMISSIONED = "being decommissioned"


class ReadOnlySwitch:
    """The state that the request path asks for before every run of adds. One listener gets every change."""

    def __init__(self) -> None:
        self.is_read_only = False
        self.has_reserve = True
        self._reasons: dict[ReadOnlyReason, None] = {}
        self._listener: Callable[[bool], None] | None = None

    @property
    def reasons(self) -> tuple[ReadOnlyReason, ...]:
        return tuple(reason for reason in ReadOnlyReason if reason in self._reasons)

    @property
    def takes_high_priority(self) -> bool:
        return not self.is_read_only or self.has_reserve

    def listen(self, listener: Callable[[bool], None]) -> None:
        assert self._listener is None, "one listener: the registration"
        self._listener = listener

    def set(self, reason: ReadOnlyReason, holds: bool) -> None:
        if holds:
            self._reasons[reason] = None
        else:
            self._reasons.pop(reason, None)
        if self.is_read_only == bool(self._reasons):
            return
        self.is_read_only = bool(self._reasons)
        if self.is_read_only:
            log.warning("the bookie is read-only from now on: %s", reason.value)
        else:
            log.info("the bookie is writable again")
        if self._listener is not None:
            self._listener(self.is_read_only)


@dataclass(frozen=True, slots=True)
class Status:
    is_read_only: bool
    updated_ms: int
    by_operator: bool


def encode_status(status: Status) -> bytes:
    mode = "READ_ONLY" if status.is_read_only else "READ_WRITE"
    return f"{_LAYOUT_VERSION},{mode},{status.updated_ms},{str(status.by_operator).lower()}\n".encode()


def decode_status(content: bytes) -> Status | None:
    """Returns None if it is not a status: it is then treated as missing, as in Apache."""
    line = content.decode("ascii", "replace").partition("\n")[0]
    parts = [part.strip() for part in line.split(",")]
    if len(parts) not in (3, 4) or parts[0] != _LAYOUT_VERSION or parts[1] not in _MODES:
        return None
    if not (parts[2].isdigit() and len(parts[2]) <= 19):
        return None
    return Status(_MODES[parts[1]], int(parts[2]), len(parts) == 3 or parts[3].lower() == "true")


async def read_operator_status(directories: BookieDirectories) -> bool:
    """Reports whether an operator has made this bookie read-only."""
    newest = await _newest(directories)
    return newest is not None and newest.is_read_only and newest.by_operator


async def write_operator_status(directories: BookieDirectories, entropy: Entropy, *, is_read_only: bool) -> None:
    """Returns when it will hold after a restart, too. On a full disk one directory that takes it is enough."""
    newest = await _newest(directories)
    # The wall clock may have gone back; the last write must still be the newest.
    updated_ms = max(entropy.wall_ms(), 0 if newest is None else newest.updated_ms + 1)
    content = encode_status(Status(is_read_only, updated_ms, by_operator=is_read_only))
    errors: list[DiskError] = []
    for directory in directories.ledger:
        try:
            await directory.write(STATUS_FILE, content)
        except DiskError as error:
            log.warning("the status could not be kept in %s: %s", directory.path, error)
            errors.append(error)
    if len(errors) == len(directories.ledger):
        raise errors[0]


async def _newest(directories: BookieDirectories) -> Status | None:
    found = []
    for directory in directories.ledger:
        content = await directory.read(STATUS_FILE)
        status = None if content is None else decode_status(content)
        if status is not None:
            found.append(status)
        elif content is not None:
            log.warning("%s/%s is not a status and is ignored: %r", directory.path, STATUS_FILE, content[:40])
    return max(found, key=lambda status: status.updated_ms, default=None)


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
        if usage is None:
            return True
        if was_full:
            return used_bytes(usage) * 100 >= usage.total_bytes * self._config.disk_usage_low_water_mark_percent
        return _exceeds(usage, self._config.disk_usage_threshold_percent)

    def _has_room(self, usages: Mapping[str, DiskUsage | None], reserve_bytes: int) -> bool:
        return all(usage is not None and usage.free_bytes > reserve_bytes for usage in usages.values())


def used_bytes(usage: DiskUsage) -> int:
    return usage.total_bytes - usage.free_bytes


def _exceeds(usage: DiskUsage | None, percent: int) -> bool:
    return usage is not None and used_bytes(usage) * 100 > usage.total_bytes * percent


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
            await cancel_all([task])

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
