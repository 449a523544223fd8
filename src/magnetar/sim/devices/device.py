"""SimDevice: a disk and the kernel above it. It outlives the processes that use it, and decides what a crash leaves.

A killed process leaves the page cache: a restart sees everything that was written, durable or not, and a prefix of an
append that was in progress. A power loss leaves what was synced, and of the rest what the device's own random choice
says (tree.py), or nothing if the test asks for the worst. `durable(path)` is what an invariant may rely on,
`cached(path)` what a reader sees.

Failure:   `faults` says what goes wrong while the device runs; `flip_bit`, `break_sector` and `empty` do harm on order.
           `sites` knows every place that asks for durability. Syncs from a place in `sites.ignored` answer OK and do
           nothing: if no test fails then, that sync is not needed or not tested.
Read next: disk.py for the Disk that components get, docs/simulation.md
"""

from __future__ import annotations

import enum
import errno
import os
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from random import Random
from types import CodeType
from typing import Final

from magnetar.runtime.disk import DiskUsage
from magnetar.sim.devices.tree import Directory, FileImage, Tree, Write
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import NO_DELAY, Delay, seeded

# --- who asks for durability ------------------------------------------------------------------------------------------


_SEAM: Final = ("magnetar.runtime", "magnetar.sim")


class SyncSites:
    def __init__(self) -> None:
        self.counts: dict[str, int] = {}
        self.ignored: set[str] = set()

    def here(self) -> str:
        """Notes the caller's place. To be called when the sync is asked for: a coroutine's caller is unknown later."""
        frame = sys._getframe(1)
        while (code := frame.f_code) in _SEAM_CODES or _is_seam(code, frame.f_globals.get("__name__", "")):
            assert frame.f_back is not None, "a sync has a caller"
            frame = frame.f_back
        site = _named(code, frame.f_lineno)
        self.counts[site] = self.counts.get(site, 0) + 1
        return site


_SEAM_CODES: Final[dict[CodeType, None]] = {}


def _is_seam(code: CodeType, module: str) -> bool:
    is_one = any(module == part or module.startswith(f"{part}.") for part in _SEAM)
    if is_one:
        _SEAM_CODES[code] = None
    return is_one


@cache
def _named(code: CodeType, line: int) -> str:
    _, package, inside = code.co_filename.rpartition("/magnetar/")
    file = inside if package else code.co_filename.rpartition("/")[2]
    return f"{file}:{line}:{code.co_qualname}"


# --- faults -----------------------------------------------------------------------------------------------------------


class Fault(enum.Enum):
    STALL = "stall"  # Any operation: takes `stall_s` longer.
    READ_ERROR = "read error"  # A read: EIO, once.
    WRITE_ERROR = "write error"  # An append: a part is written, then EIO.
    FULL = "full"  # An append: a part is written, then ENOSPC. Also counts appends that met the device's real end.
    CUT_ERROR = "cut error"  # A truncate, or the cut after a failed append: EIO.
    SYNC_ERROR = "sync error"  # A sync of a file or a directory: EIO, and what was unsynced is lost.
    LATENT_SECTOR = "latent sector"  # A read: one of its sectors is unreadable from now on.
    BIT_FLIP = "bit flip"  # A read: one durable bit in its range is the other way round from now on.
    MISDIRECTED_WRITE = "misdirected write"  # A sync: one of its writes goes somewhere else; the old data stays.
    EMPTIED = "emptied"  # Not drawn: counts `SimDevice.empty`.

    __hash__ = object.__hash__  # Several look-ups per operation; an enumeration's own hash is a call of Python code.


STALL_S: Final = 0.3
LIES: Final = (Fault.LATENT_SECTOR, Fault.BIT_FLIP, Fault.MISDIRECTED_WRITE, Fault.EMPTIED)
"""Faults that destroy what was durable, whatever the process did right."""


class DiskFaults:
    def __init__(self, seed: str) -> None:
        self.rates: dict[Fault, float] = {}
        self.counts: dict[Fault, int] = dict.fromkeys(Fault, 0)
        self.stall_s = STALL_S
        self.has_lied = False
        self._seed = seed
        self._randoms: dict[Fault, Random] = {}  # Made when they are needed: most devices never fail.
        self._ordered: list[tuple[Fault, str | None]] = []

    def strike_next(self, fault: Fault, path: str | None = None) -> None:
        """`path` is the device's; a directory's for SYNC_ERROR of a directory."""
        self._ordered.append((fault, path))

    def strikes(self, fault: Fault, path: str) -> bool:
        """Asked once per operation that the fault can strike; counts the strike."""
        if not (self._ordered or self.rates):
            return False
        struck = self._take_order(fault, path) or self._draw(fault)
        if struck:
            self.count(fault)
        return struck

    def count(self, fault: Fault) -> None:
        self.counts[fault] += 1
        if fault in LIES:
            self.has_lied = True

    def random(self, fault: Fault) -> Random:
        """For the details of a strike."""
        if fault not in self._randoms:
            self._randoms[fault] = seeded(f"{self._seed}/{fault.value}")
        return self._randoms[fault]

    def _take_order(self, fault: Fault, path: str) -> bool:
        if not self._ordered:
            return False
        for order in ((fault, path), (fault, None)):
            if order in self._ordered:
                self._ordered.remove(order)
                return True
        return False

    def _draw(self, fault: Fault) -> bool:
        rate = self.rates.get(fault, 0.0)
        return rate > 0 and self.random(fault).random() < rate


# --- the device -------------------------------------------------------------------------------------------------------


_SECTOR_BYTES: Final = 512
_SHOWN_TOTAL_BYTES: Final = 2**40  # What `usage` says of a device without a limit.


class Crash(enum.Enum):
    KILL = "kill"
    POWER_LOSS = "power loss"
    DROP_UNSYNCED = "power loss that leaves nothing unsynced"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskTiming:
    operation: Delay = NO_DELAY
    sync: Delay = NO_DELAY


class SimDevice:
    def __init__(
        self,
        name: str = "",
        *,
        seed: str = "",
        timing: DiskTiming | None = None,
        capacity_bytes: int | None = None,
        sites: SyncSites | None = None,
    ) -> None:
        self.name = name
        self.seed = seed
        self.capacity_bytes = capacity_bytes  # May change at any time; None: no limit.
        self.faults = DiskFaults(f"{seed}/faults")
        self.sites = sites if sites is not None else SyncSites()
        self.tree = Tree()
        self.bytes_read = 0
        self.locks: dict[int, str] = {}  # Number of the file → who holds it.
        self.on_synced: list[Callable[[str], None]] = []
        """Called with the path of each file or directory that a sync has just made durable."""
        self._timing = timing if timing is not None else DiskTiming()
        self._timing_random = seeded(f"{seed}/timing")
        self._crash_random = seeded(f"{seed}/crash")
        self._lanes: list[SimOffload] = []
        self._dead_lanes: list[SimOffload] = []

    def label(self, path: str) -> str:
        """How messages name a file."""
        return f"{self.name}/{path}"

    # --- crashes ---

    def attach(self, lane: SimOffload) -> None:
        """The lane dies with the next crash."""
        self._lanes.append(lane)

    def detach(self, lane: SimOffload) -> None:
        if lane in self._lanes:  # Else the lane has died.
            self._lanes.remove(lane)

    def crash(self, kind: Crash) -> None:
        """Every Disk on this device turns inert; a new SimDisk finds what survived."""
        self.halt()
        self.settle(kind)

    def halt(self) -> None:
        """The first half of a crash, for a machine that has several devices: all of them stop before one settles."""
        for lane in self._lanes:
            lane.die()
        self._dead_lanes.extend(self._lanes)
        self._lanes.clear()
        self.locks.clear()

    def settle(self, kind: Crash) -> None:
        assert not self._lanes, "the processes stop first"
        if kind is Crash.POWER_LOSS:
            self.tree.lose_power(self._crash_random)
        elif kind is Crash.DROP_UNSYNCED:
            self.tree.lose_power(None)
        else:
            self._maybe_evict(*self.tree.files())

    def release_dead(self) -> None:
        """Ends what still waits for a dead Disk, by cancelling it. For the end of a test: the world is over."""
        for lane in self._dead_lanes:
            lane.release()
        self._dead_lanes.clear()

    # --- what a test may look at or break ---

    def durable(self, path: str) -> bytes | None:
        """What every power loss would leave of this file from now on; None if it might leave no such file."""
        image = self.tree.sure(path)
        return None if image is None else image.sure()

    def cached(self, path: str) -> bytes:
        return bytes(self.tree.file(path).cache)

    def flip_bit(self, path: str, offset: int, bit: int = 0) -> None:
        """In the cache and, if that byte is there, on the medium."""
        self.faults.count(Fault.BIT_FLIP)
        _flip(self.tree.file(path), offset, bit)

    def break_sector(self, path: str, offset: int) -> None:
        """Reads of the sector at this offset fail until it is cut off: an append does not write a sector anew."""
        self.faults.count(Fault.LATENT_SECTOR)
        _break_sector(self.tree.file(path), offset)

    def empty(self, directory: str = "") -> None:
        """The disk was replaced: all below this directory is gone. Only while no process uses the device."""
        assert not self._lanes, "a disk is replaced while the machine is down"
        self.faults.count(Fault.EMPTIED)
        self.tree.empty(directory)

    def leave_room(self, size: int) -> None:
        """Sets the capacity so that this many bytes more are free."""
        self.capacity_bytes = self._used_bytes() + size

    def usage(self) -> DiskUsage:
        total = _SHOWN_TOTAL_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total_bytes=total, free_bytes=max(0, total - self._used_bytes()))

    # --- how long things take ---

    def operation_s(self, path: str) -> float:
        return self._timing.operation.draw(self._timing_random) + self._stall_s(path)

    def sync_s(self, path: str) -> float:
        return self._timing.sync.draw(self._timing_random) + self._stall_s(path)

    def _stall_s(self, path: str) -> float:
        return self.faults.stall_s if self.faults.strikes(Fault.STALL, path) else 0.0

    # --- system calls; they raise OSError as the kernel does ---

    def read(self, image: FileImage, start: int, end: int) -> bytes:
        if start < end:
            self._spoil(image, start, end)
        if self.faults.strikes(Fault.READ_ERROR, image.path) or not image.is_readable(start, end):
            raise _error(errno.EIO)
        self.bytes_read += end - start
        return bytes(image.cache[start:end])

    def write(self, image: FileImage, offset: int, data: bytes) -> None:
        """When it raises, a part may be written."""
        taken, code = self._taken(image, offset, data)
        if taken:
            image.write(offset, data[:taken])
        if code:
            raise _error(code)

    def write_prefix(self, image: FileImage, offset: int, data: bytes) -> None:
        """What a crash leaves of a write that was under way."""
        if prefix := data[: self._crash_random.randint(0, len(data))]:
            image.write(offset, prefix)

    def cut(self, image: FileImage, size: int) -> None:
        if self.faults.strikes(Fault.CUT_ERROR, image.path):
            raise _error(errno.EIO)
        image.cut(size)

    def sync(self, image: FileImage) -> None:
        if self.faults.strikes(Fault.SYNC_ERROR, image.path):
            image.lose()
            self._maybe_evict(image)
            raise _error(errno.EIO)
        writes = [change for change in image.pending if isinstance(change, Write)]
        if writes and self.faults.strikes(Fault.MISDIRECTED_WRITE, image.path):
            self._misdirect(image, self.faults.random(Fault.MISDIRECTED_WRITE).choice(writes))
        image.commit()
        self._tell_synced(image.path)

    def sync_dir(self, directory: Directory) -> None:
        if self.faults.strikes(Fault.SYNC_ERROR, directory.path):
            directory.lose()
            raise _error(errno.EIO)
        directory.commit()
        self._tell_synced(directory.path)

    def _tell_synced(self, path: str) -> None:
        for watcher in self.on_synced:
            watcher(path)

    # --- room ---

    def _used_bytes(self) -> int:
        return self.tree.used_bytes()

    def _free_bytes(self) -> int:
        return self.usage().free_bytes

    def _taken(self, image: FileImage, offset: int, data: bytes) -> tuple[int, int]:
        """How many bytes of a write the device takes, and the error that ends it or 0."""
        for fault, code in ((Fault.WRITE_ERROR, errno.EIO), (Fault.FULL, errno.ENOSPC)):
            if data and self.faults.strikes(fault, image.path):
                return self.faults.random(fault).randrange(len(data)), code
        if self.capacity_bytes is None:
            return len(data), 0
        room = max(0, len(image.cache) - offset) + self._free_bytes()
        if len(data) <= room:
            return len(data), 0
        self.faults.count(Fault.FULL)
        return room, errno.ENOSPC

    # --- silent harm ---

    def _maybe_evict(self, *images: FileImage) -> None:
        for image in images:
            if image.has_lost and self._crash_random.random() < 0.5:
                image.evict()

    def _spoil(self, image: FileImage, start: int, end: int) -> None:
        if self.faults.strikes(Fault.LATENT_SECTOR, image.path):
            _break_sector(image, self.faults.random(Fault.LATENT_SECTOR).randrange(start, end))
        end = min(end, len(image.durable))
        if start < end and self.faults.strikes(Fault.BIT_FLIP, image.path):
            random = self.faults.random(Fault.BIT_FLIP)
            _flip(image, random.randrange(start, end), random.randrange(8))

    def _misdirect(self, image: FileImage, write: Write) -> None:
        """The write lands on durable bytes of some file; at its own place the medium keeps what it had.

        The cache forgets both places: nobody would notice as long as it remembered.
        """
        random = self.faults.random(Fault.MISDIRECTED_WRITE)
        victims = [other for other in self.tree.files() if other.durable]
        if victims:
            victim = random.choice(victims)
            _overwrite(victim, random.randrange(len(victim.durable)), write.data)
        image.pending[image.pending.index(write)] = Write(write.offset, _old_data(image, write))
        image.evict()


def _old_data(image: FileImage, write: Write) -> bytes:
    return bytes(image.durable[write.offset : write.end]).ljust(len(write.data), b"\0")


def _overwrite(image: FileImage, offset: int, data: bytes) -> None:
    end = min(offset + len(data), len(image.durable))
    image.durable[offset:end] = data[: end - offset]
    end = min(end, len(image.cache))
    if offset < end:
        image.cache[offset:end] = data[: end - offset]


def _flip(image: FileImage, offset: int, bit: int) -> None:
    image.cache[offset] ^= 1 << bit
    if offset < len(image.durable):
        image.durable[offset] ^= 1 << bit


def _break_sector(image: FileImage, offset: int) -> None:
    start = offset - offset % _SECTOR_BYTES
    image.break_range(start, start + _SECTOR_BYTES)


def _error(code: int) -> OSError:
    return OSError(code, os.strerror(code))
