"""SimDevice: a disk and the kernel above it. It outlives the processes that use it, and decides what a crash leaves.

A killed process leaves the page cache, and a restart sees everything that was written, durable or not, and a prefix of
an append that was in progress. A power loss leaves what was synced, and of the rest what the device's own random choice
says, or nothing if the test asks for the worst. `durable(path)` is what an invariant may rely on, `cached(path)` what a
reader sees.

- files: pending changes are writes and cuts. A file grows at its end and is cut there; only its room is overwritten,
  which is preallocated zeros or what a file held that is used again. A power loss leaves a prefix of them with the next
  write torn, or each page and the size as they were at some moment since the last sync: the kernel writes pages back in
  an order of its own.
- names: pending changes of a directory come, go and move. A power loss leaves a prefix of them.
- sites: `sites` knows every place that asks for durability. Syncs from a place in `sites.ignored` answer OK and do
  nothing: if no test fails then, that sync is not needed or not tested.

Invariant: A file's `durable` with `pending` applied in order is `cache`, unless a sync failed or the medium did wrong.
           A power loss changes no byte that was synced and is not about to be cut or overwritten. Within one directory
           a rename leaves old or new, never neither; between two it leaves old, both, or new.
Failure:   After a failed sync the pending changes are still seen and never durable. What is written after them later is
           durable after a gap of zeros, as on ext4. A broken rule raises the kernel's own error. `faults` says what
           goes wrong while the device runs; `flip_bit`, `break_sector` and `empty` do harm on order.
Read next: disk.py for the Disk that components get, docs/simulation.md
"""

from __future__ import annotations

import enum
import errno
import os
import posixpath
import sys
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from random import Random
from types import CodeType
from typing import Final, TypeAlias

from magnetar.runtime.disk import DiskUsage
from magnetar.sim.offload import SimOffload
from magnetar.sim.seeds import NO_DELAY, Delay, seeded

# --- files ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Write:
    offset: int
    data: bytes

    @property
    def end(self) -> int:
        return self.offset + len(self.data)


@dataclass(frozen=True, slots=True)
class Cut:
    size: int


Change: TypeAlias = Write | Cut


def apply(image: bytearray, change: Change) -> None:
    if isinstance(change, Cut):
        del image[change.size :]
    else:
        image.extend(bytes(max(0, change.offset - len(image))))
        image[change.offset : change.end] = change.data


class FileImage:
    def __init__(self, number: int, path: str) -> None:
        self.number = number  # In order of birth: what an inode's number is to a real file.
        self.path = path  # Its present name, or its last one.
        self.cache = bytearray()
        self.durable = bytearray()
        self.pending: list[Change] = []
        self.has_lost = False
        self._bad: list[tuple[int, int]] = []  # Ranges that cannot be read.

    def write(self, offset: int, data: bytes) -> None:
        self._change(Write(offset, data))

    def cut(self, size: int) -> None:
        self._change(Cut(size))
        self._bad = [(start, end) for start, end in self._bad if start < size]

    def _change(self, change: Change) -> None:
        apply(self.cache, change)
        self.pending.append(change)

    def commit(self) -> None:
        for change in self.pending:
            apply(self.durable, change)
        self.pending.clear()

    def lose(self) -> None:
        """A sync failed: the pending changes are clean pages now, which are never written."""
        self.has_lost = self.has_lost or bool(self.pending)
        self.pending.clear()

    def evict(self) -> None:
        """The cache forgets its clean pages: lost bytes show as what the medium has. The size stays known."""
        size = len(self.cache)
        image = bytearray(self.durable)
        for change in self.pending:
            apply(image, change)
        image.extend(bytes(max(0, size - len(image))))
        del image[size:]
        self.cache, self.has_lost = image, False

    def settle(self, survived: bytearray) -> None:
        """After a power loss this is the file, in the cache and on the medium."""
        self.durable, self.cache = survived, bytearray(survived)
        self.pending.clear()
        self.has_lost = False
        self._bad = [(start, end) for start, end in self._bad if start < len(survived)]

    def sure(self) -> bytes:
        """What every power loss would leave: durable, and not about to be cut or overwritten by other bytes."""
        starts = [
            change.size if isinstance(change, Cut) else change.offset
            for change in self.pending
            if isinstance(change, Cut) or self.durable[change.offset : change.end] != change.data
        ]
        return bytes(self.durable[: min(starts, default=len(self.durable))])

    def break_range(self, start: int, end: int) -> None:
        self._bad.append((start, end))

    def is_readable(self, start: int, end: int) -> bool:
        return all(end <= bad_start or start >= bad_end for bad_start, bad_end in self._bad)


_UNITS: Final = (512, 4_096)  # A device writes whole sectors, the kernel whole pages.


def survived(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    if not pending:
        return bytearray(durable)
    return _in_order(durable, pending, random) if random.random() < 0.5 else _writeback(durable, pending, random)


def survived_count(count: int, random: Random) -> int:
    """How many of an ordered list survive: none and all are as likely as all that lies between."""
    lot = random.random()
    if lot < 0.25:
        return 0
    return count if lot < 0.5 else random.randint(0, count)


def _in_order(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    image = bytearray(durable)
    count = survived_count(len(pending), random)
    for change in pending[:count]:
        apply(image, change)
    torn = pending[count] if count < len(pending) else None
    if isinstance(torn, Write) and random.random() < 0.5:
        apply(image, Write(torn.offset, torn.data[: random.randint(0, len(torn.data))]))
    return image


def _writeback(durable: bytearray, pending: Sequence[Change], random: Random) -> bytearray:
    ends = [change.end for change in pending if isinstance(change, Write)]
    pages = _Pages(durable, max(ends, default=0), len(pending), random)
    for number, change in enumerate(pending):
        pages.apply(number, change)
    del pages.image[_size(len(durable), pending, random) :]
    return pages.image


class _Pages:
    """The widest image there was; each page stops taking changes at a moment of its own."""

    def __init__(self, durable: bytearray, end: int, changes: int, random: Random) -> None:
        self.image = bytearray(durable) + bytes(max(0, end - len(durable)))
        self._unit = random.choice(_UNITS)
        self._changes = changes
        self._random = random
        self._moments: dict[int, int] = {}

    def apply(self, number: int, change: Change) -> None:
        if isinstance(change, Cut):
            start, end, data = change.size, len(self.image), None
        else:
            start, end, data = change.offset, change.end, change.data
        for page in range(start // self._unit, -(-end // self._unit)):
            if number < self._moment(page):
                first, last = max(start, page * self._unit), min(end, (page + 1) * self._unit)
                self.image[first:last] = bytes(last - first) if data is None else data[first - start : last - start]

    def _moment(self, page: int) -> int:
        if page not in self._moments:
            self._moments[page] = survived_count(self._changes, self._random)
        return self._moments[page]


def _size(size: int, pending: Sequence[Change], random: Random) -> int:
    """The size after some of the changes, or in the middle of a write."""
    count = survived_count(len(pending), random)
    for change in pending[:count]:
        size = _size_after(size, change)
    if count < len(pending) and isinstance(pending[count], Write):
        size = random.randint(size, max(size, _size_after(size, pending[count])))
    return size


def _size_after(size: int, change: Change) -> int:
    return min(size, change.size) if isinstance(change, Cut) else max(size, change.end)


# --- directories ------------------------------------------------------------------------------------------------------


Node: TypeAlias = "FileImage | Directory"


class NameChange:
    """Equal only to itself: two removals of one name are two changes."""

    def __init__(self, directory: Directory, names: Mapping[str, Node | None], needs: NameChange | None) -> None:
        self.directory = directory
        self.names = names  # None: the name goes.
        self.needs = needs
        self.is_lost = False

    @property
    def is_pending(self) -> bool:
        return self in self.directory.pending

    def apply(self, entries: dict[str, Node]) -> None:
        for name, node in self.names.items():
            entries.pop(name, None)
            if node is not None:
                entries[name] = node


class Directory:
    def __init__(self, number: int, path: str) -> None:
        self.number = number
        self.path = path
        self.entries: dict[str, Node] = {}
        self.durable: dict[str, Node] = {}
        self.pending: deque[NameChange] = deque()

    def change(self, names: Mapping[str, Node | None], *, needs: NameChange | None = None) -> NameChange:
        change = NameChange(self, names, needs)
        change.apply(self.entries)
        self.pending.append(change)
        return change

    def commit(self) -> None:
        if self.pending:
            self._commit_through(self.pending[-1])

    def commit_some(self, random: Random) -> None:
        """What a power loss happens to find on the medium already; `settle` forgets the rest."""
        if self.pending and (count := survived_count(len(self.pending), random)):
            self._commit_through(self.pending[count - 1])

    def lose(self) -> None:
        for change in self.pending:
            change.is_lost = True
        self.pending.clear()

    def settle(self) -> None:
        self.pending.clear()
        self.entries = dict(self.durable)

    def is_sure(self, name: str) -> bool:
        """Every power loss would leave this name, and for what `durable` says."""
        return name in self.durable and all(name not in change.names for change in self.pending)

    def _commit_through(self, last: NameChange) -> None:
        while last.is_pending:
            change = self.pending.popleft()
            if change.needs is not None and change.needs.is_lost:
                change.is_lost = True
                continue
            change.apply(self.durable)
            if change.needs is not None:
                change.needs.directory._commit_through(change.needs)


class Tree:
    def __init__(self) -> None:
        self._births = 0
        self.root = Directory(0, "")
        self._directories = [self.root]

    # --- looking ---

    def find(self, path: str) -> Node | None:
        """Returns None if it does not exist. Raises NotADirectoryError if a file is in the way."""
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory):
                raise _error(errno.ENOTDIR)
            if name not in node.entries:
                return None
            node = node.entries[name]
        return node

    def file(self, path: str) -> FileImage:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT)
        if isinstance(node, Directory):
            raise _error(errno.EISDIR)
        return node

    def directory(self, path: str) -> Directory:
        node = self.find(path)
        if node is None:
            raise _error(errno.ENOENT)
        if not isinstance(node, Directory):
            raise _error(errno.ENOTDIR)
        return node

    def files(self) -> Iterator[FileImage]:
        """In the order of their paths."""
        return (node for node in _walk(self.root) if isinstance(node, FileImage))

    def used_bytes(self) -> int:
        """What all files hold together."""
        directories, size = [self.root], 0
        for directory in directories:
            for node in directory.entries.values():
                if isinstance(node, FileImage):
                    size += len(node.cache)
                else:
                    directories.append(node)
        return size

    def sure(self, path: str) -> FileImage | None:
        """The file, if every power loss would leave it under this name."""
        node: Node = self.root
        for name in _parts(path):
            if not isinstance(node, Directory) or not node.is_sure(name):
                return None
            node = node.durable[name]
        return node if isinstance(node, FileImage) else None

    # --- changing ---

    def create(self, path: str) -> FileImage:
        directory, name = self._place(path)
        image = FileImage(self._next_number(), path)
        directory.change({name: image})
        return image

    def make_dir(self, path: str) -> list[Directory]:
        """Makes it and its parents; returns the parents whose names changed."""
        changed: list[Directory] = []
        parts = _parts(path)
        for depth in range(1, len(parts) + 1):
            below = "/".join(parts[:depth])
            node = self.find(below)
            if node is None:
                changed.append(self._make_one(below))
            elif not isinstance(node, Directory):
                raise _error(errno.EEXIST if depth == len(parts) else errno.ENOTDIR)
        return changed

    def above(self, path: str) -> list[Directory]:
        """The directories above this one, the next one first."""
        parts = _parts(path)
        return [self.directory("/".join(parts[:depth])) for depth in reversed(range(len(parts)))]

    def _make_one(self, path: str) -> Directory:
        parent, name = self._place(path)
        made = Directory(self._next_number(), path)
        self._directories.append(made)
        parent.change({name: made})
        return parent

    def rename(self, old: str, new: str) -> None:
        image = self.file(old)
        if isinstance(self.find(new), Directory):
            raise _error(errno.EISDIR)
        (source, old_name), (target, new_name) = self._place(old), self._place(new)
        if old == new:
            return
        if source is target:
            source.change({old_name: None, new_name: image})
        else:
            source.change({old_name: None}, needs=target.change({new_name: image}))
        image.path = new

    def remove(self, path: str) -> None:
        self.file(path)
        directory, name = self._place(path)
        directory.change({name: None})

    def empty(self, path: str) -> None:
        """Deletes everything below, at once and durably."""
        directory = self.directory(path)
        directory.entries, directory.durable = {}, {}
        directory.pending.clear()
        self._forget_lost_directories()

    def lose_power(self, random: Random | None) -> None:
        """Unsynced changes survive as the random choices say; without any, nothing unsynced does."""
        if random is not None:
            for directory in self._directories:  # In order of birth, so that equal runs draw equal lots.
                directory.commit_some(random)
        for directory in self._directories:
            directory.settle()
        self._forget_lost_directories()
        for image in self.files():  # A file that has lost its name is not met here, and has lost its blocks.
            image.settle(survived(image.durable, image.pending, random) if random else bytearray(image.durable))

    def _forget_lost_directories(self) -> None:
        self._directories = [node for node in _walk(self.root) if isinstance(node, Directory)]

    def _place(self, path: str) -> tuple[Directory, str]:
        parent, name = posixpath.split(path)
        return self.directory(parent), name

    def _next_number(self) -> int:
        self._births += 1
        return self._births


def _parts(path: str) -> list[str]:
    return path.split("/") if path else []


def _walk(node: Node) -> Iterator[Node]:
    yield node
    if isinstance(node, Directory):
        for name in sorted(node.entries):
            inner = node.entries[name]
            inner.path = f"{node.path}/{name}" if node.path else name
            yield from _walk(inner)


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
        """In the cache and, if that byte exists there, on the medium."""
        self.faults.count(Fault.BIT_FLIP)
        _flip(self.tree.file(path), offset, bit)

    def break_sector(self, path: str, offset: int) -> None:
        """Reads of the sector at this offset fail until it is cut off: an append does not write a sector anew."""
        self.faults.count(Fault.LATENT_SECTOR)
        _break_sector(self.tree.file(path), offset)

    def empty(self, directory: str = "") -> None:
        """Replaces the disk: deletes all below this directory. Only while no process uses the device."""
        assert not self._lanes, "a disk is replaced while the machine is down"
        self.faults.count(Fault.EMPTIED)
        self.tree.empty(directory)

    def leave_room(self, size: int) -> None:
        """Sets the capacity so that this many bytes more are free."""
        self.capacity_bytes = self.tree.used_bytes() + size

    def usage(self) -> DiskUsage:
        total = _SHOWN_TOTAL_BYTES if self.capacity_bytes is None else self.capacity_bytes
        return DiskUsage(total_bytes=total, free_bytes=max(0, total - self.tree.used_bytes()))

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
        """Writes what a crash leaves of a write that was in progress."""
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

    def _taken(self, image: FileImage, offset: int, data: bytes) -> tuple[int, int]:
        """How many bytes of a write the device takes, and the error that ends it or 0."""
        for fault, code in ((Fault.WRITE_ERROR, errno.EIO), (Fault.FULL, errno.ENOSPC)):
            if data and self.faults.strikes(fault, image.path):
                return self.faults.random(fault).randrange(len(data)), code
        if self.capacity_bytes is None:
            return len(data), 0
        room = max(0, len(image.cache) - offset) + self.usage().free_bytes
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

        The cache forgets both places: otherwise reads would not notice.
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
