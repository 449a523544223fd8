"""RocksDbStore: the ordered store in production, on RocksDB through rocksdict.

Invariant: a batch is one synced write to RocksDB's log. RocksDB flushes and compacts its files on its own threads. A
           store that is opened read-only writes nothing, not even RocksDB's diary; the log is replayed into memory.
Order:     RocksDB takes a directory without CURRENT for a new database, and makes one beside existing tables and logs.
           CURRENT is durable before RocksDB makes any of them, and before its second MANIFEST: if one of these exists
           without CURRENT, a file was lost, and nothing is touched. MANIFEST-000001 alone is the rest of a first start
           that crashed.
Format:    RocksDB takes a MANIFEST whose end is missing for one whose last write was torn: it opens an older set of
           tables and deletes the others. So a batch carries a seal: the MANIFEST's name with the size and the checksum
           of its content, which was synced before. The seal is compared in a read-only view, which changes nothing,
           before the database is opened for writing.
Failure:   a torn tail of RocksDB's log is the normal result of a crash and is dropped; any other damage there is an
           error at opening (`tolerate_corrupted_tail_records`; RocksDB's default would silently forget synced data).
           Its tables have checksums too; an iterator reports damage only when it is asked, so it always is asked.
           After a failed write, RocksDB refuses every write and serves reads. Before the next try it is closed and
           opened again, which needs room. So a read-only stand-in, which needs none, is opened first: it serves reads
           until a later try can reopen the database. A lookup in progress keeps the old one and RocksDB's lock for a
           moment: then the next try opens it. rocksdict raises plain `Exception` with RocksDB's text, which is
           translated here and nowhere else.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar

from rocksdict import AccessType, BlockBasedOptions, Cache, DBRecoveryMode, Options, Rdict, WriteBatch, WriteOptions

from magnetar.errors import (
    ClosedError,
    DiskError,
    DiskFullError,
    FileLockedError,
    IndexDamagedError,
    MagnetarError,
    SyncFailedError,
)
from magnetar.runtime.system_file import checksum_of_start, first_line_of, size_of, sync_file
from magnetar.storage.index.extents import REMEDY
from magnetar.storage.index.ordered_store import Changes, OrderedStore

_log = logging.getLogger(__name__)

_WRITE_BUFFER_BYTES = 16 * 2**20  # A batch is a few hundred KiB: a table file every minute or so under full load.
_BLOCK_CACHE_BYTES = 16 * 2**20
_OPEN_FILES_MAX = 256
_INFO_LOGS_MAX = 2  # Files of RocksDB's own diary.
_CURRENT = "CURRENT"  # Names the MANIFEST, which names everything else.
_BEHIND_CURRENT = re.compile(r"\d+\.(sst|log)|MANIFEST-(?!0*1$)\d+")
_SEAL_KEY = b"\xffseal"  # Above every key of the location index.
_SEAL = re.compile(r"(MANIFEST-\d+) (\d+) (\d+)", re.ASCII)
_ALL_FILES = -1  # All are opened at once: a compaction during reads may then remove them.

_Answer = TypeVar("_Answer")


class RocksDbStore(OrderedStore):
    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """Opens or creates the database and replays RocksDB's log; blocks. `read_only`: the database must exist."""
        self._path = path
        self._is_read_only = read_only
        self._write_options = WriteOptions()
        self._write_options.sync = True
        self._db = self._opened(_options(), read_only=read_only)
        self._seal: _Seal | None = None
        """The last seal that this process wrote."""
        self._is_failed = False
        self._is_stand_in = False
        self._is_closed = False

    def get(self, key: bytes) -> bytes | None:
        value: bytes | None = self._ask(lambda db: db.get(key))
        return value

    def ascending(self, first: bytes, end: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._iterator()
        entries.seek(first)
        while entries.valid():
            key = entries.key()
            if key >= end:
                return
            yield key, entries.value()
            entries.next()
        self._check(entries)

    def descending(self, last: bytes, first: bytes) -> Iterator[tuple[bytes, bytes]]:
        entries = self._iterator()
        entries.seek_for_prev(last)
        while entries.valid():
            key = entries.key()
            if key < first:
                return
            yield key, entries.value()
            entries.prev()
        self._check(entries)

    def write(self, changes: Changes) -> None:
        assert not self._is_read_only, f"the location index {self._path} was opened to be looked at"
        if self._is_failed and not self._is_closed:
            self._reopen()
        batch = WriteBatch(raw_mode=True)
        for first, end in changes.removed_ranges:
            batch.delete_range(first, end)
        for key in changes.removed:
            batch.delete(key)
        for key, value in changes.put:
            batch.put(key, value)
        db = self._usable()
        try:
            seal = self._new_seal()
            if seal is not None:
                batch.put(_SEAL_KEY, seal.encode())
            db.write(batch, self._write_options)
            self._seal = seal or self._seal
        except Exception as error:
            self._is_failed = True
            raise self._translated("write to", error) from error

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._close_db(self._db)

    def _reopen(self) -> None:
        """Opens the database again; reads are served during it. DiskFullError: the stand-in serves reads until a later
        try."""
        if not self._is_stand_in:
            options = _options()
            options.set_max_open_files(_ALL_FILES)
            self._exchange(self._opened(options, read_only=True))
            self._is_stand_in = True
        try:
            self._exchange(self._opened(_options(), read_only=False))
        except FileLockedError as error:  # No other process has it: the directory is ours.
            raise DiskFullError(
                f"the location index {self._path} met a full disk, and is opened again when a lookup that began before "
                "has ended"
            ) from error
        self._is_stand_in = False
        self._is_failed = False

    def _exchange(self, db: Rdict) -> None:
        old, self._db = self._db, db
        self._close_db(old)

    def _close_db(self, db: Rdict) -> None:
        try:
            db.close()
        except Exception as error:  # It is closed anyway. What it could not write to a table is in its log.
            _log.warning("closing the location index %s: %s", self._path, error)

    def _opened(self, options: Options, *, read_only: bool) -> Rdict:
        self._check_current()
        manifest = self._manifest()
        try:
            if read_only or manifest is None:
                db = _open(self._path, options, read_only=read_only)
                self._check_seal(db, manifest)
                return db
            look = _open(self._path, options, read_only=True)
            try:
                self._check_seal(look, manifest)
            finally:
                look.close()
            return _open(self._path, options, read_only=False)
        except MagnetarError:
            raise
        except Exception as error:
            translated = self._translated("open", error)
            if type(translated) is DiskError and "no such file" in str(error).lower():
                raise IndexDamagedError(f"{translated}; {REMEDY}") from error
            raise translated from error

    def _check_current(self) -> None:
        names = sorted(glob.glob("*", root_dir=self._path))  # noqa: PTH207 - no names if there is no directory
        found = [name for name in names if _BEHIND_CURRENT.fullmatch(name)]
        if found and _CURRENT not in names:
            raise IndexDamagedError(
                f"cannot open the location index {self._path}: its file {_CURRENT} is missing, and {found[0]} shows "
                f"that it existed; {REMEDY}"
            )

    def _manifest(self) -> str | None:
        """Returns the name of the MANIFEST in use; None before the first start."""
        return first_line_of(f"{self._path}/{_CURRENT}")

    def _new_seal(self) -> _Seal | None:
        """Returns None if the last seal is still valid, as it mostly is: the MANIFEST changes with a table. Raises
        OSError."""
        name = self._manifest()
        size = None if name is None else size_of(f"{self._path}/{name}")
        if name is None or size is None or (self._seal is not None and self._seal[:2] == (name, size)):
            return None  # Without a size, RocksDB has just begun another one: the next batch seals that.
        sync_file(f"{self._path}/{name}")
        checksum = checksum_of_start(f"{self._path}/{name}", size)
        assert checksum is not None, f"{name} became shorter"
        return _Seal(name, size, checksum)

    def _check_seal(self, db: Rdict, manifest: str | None) -> None:
        value = db.get(_SEAL_KEY)
        if value is None or manifest is None:
            return  # Nothing was written yet, or a release without seals wrote it.
        seal = _Seal.decode(value)
        if seal is None or _number_of(manifest) < _number_of(seal.name):
            why = f"{manifest} is older than what was written last"
        elif manifest == seal.name and checksum_of_start(f"{self._path}/{manifest}", seal.size) != seal.checksum:
            why = f"{manifest} has lost a part of what it had"
        else:
            return
        db.close()
        raise IndexDamagedError(f"cannot open the location index {self._path}: its file {why}; {REMEDY}")

    def _ask(self, question: Callable[[Rdict], _Answer]) -> _Answer:
        while True:
            db = self._usable()
            try:
                return question(db)
            except Exception as error:
                if db is self._db:
                    raise self._translated("read", error) from error
                # Otherwise it was exchanged for another, and closed, since it was looked up.

    def _usable(self) -> Rdict:
        if self._is_closed:
            raise ClosedError(f"the location index {self._path} is closed")
        return self._db

    def _iterator(self) -> Any:
        return self._ask(lambda db: db.iter())

    def _check(self, entries: Any) -> None:
        """Raises if the iterator stopped at damage and not at the end of the keys."""
        try:
            entries.status()
        except Exception as error:
            raise self._translated("read", error) from error

    def _translated(self, action: str, error: Exception) -> MagnetarError:
        return translate(f"cannot {action} the location index {self._path}", str(error))


class _Seal(NamedTuple):
    """What a MANIFEST had when a batch was written."""

    name: str
    size: int
    checksum: int

    def encode(self) -> bytes:
        return f"{self.name} {self.size} {self.checksum}".encode()

    @classmethod
    def decode(cls, value: bytes) -> _Seal | None:
        found = _SEAL.fullmatch(value.decode("ascii", "replace"))
        return None if found is None else cls(found[1], int(found[2]), int(found[3]))


def _number_of(manifest: str) -> int:
    """Returns -1 for a name that is not a MANIFEST's."""
    number = manifest.rpartition("-")[2]
    return int(number) if number.isascii() and number.isdigit() else -1


def _open(path: str, options: Options, *, read_only: bool) -> Rdict:
    return Rdict(path, options, access_type=AccessType.read_only() if read_only else AccessType.read_write())


def translate(what: str, reason: str) -> MagnetarError:
    lower = reason.lower()
    if "no space left" in lower or "quota exceeded" in lower:
        return DiskFullError(f"{what}: {reason}; free some room on that device")
    if "corruption" in lower:
        return IndexDamagedError(f"{what}: {reason}; {REMEDY}")
    if "lock" in lower and ("resource temporarily unavailable" in lower or "no locks available" in lower):
        return FileLockedError(f"{what}: another process has it open; stop it, or use another directory")
    if "fsync" in lower or "fdatasync" in lower or "while sync" in lower:
        return SyncFailedError(f"{what}: {reason}; check the device, then restart this process")
    return DiskError(f"{what}: {reason}")


def _options() -> Options:
    options = Options(raw_mode=True)
    options.create_if_missing(True)
    options.set_wal_recovery_mode(DBRecoveryMode.tolerate_corrupted_tail_records())
    options.set_write_buffer_size(_WRITE_BUFFER_BYTES)
    options.set_max_open_files(_OPEN_FILES_MAX)
    options.set_keep_log_file_num(_INFO_LOGS_MAX)
    tables = BlockBasedOptions()
    tables.set_block_cache(Cache(_BLOCK_CACHE_BYTES))
    options.set_block_based_table_factory(tables)
    return options
