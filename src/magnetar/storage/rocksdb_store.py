"""RocksDbStore: the ordered store in production, on RocksDB through rocksdict.

Durable:   one synced write to RocksDB's log per batch. Its own files are flushed and compacted on its own threads.
Damage:    a torn tail of RocksDB's log is what a crash leaves, and is dropped; any other damage there is an error when
           it is opened (`tolerate_corrupted_tail_records`; RocksDB's default would silently forget what was synced).
           Its tables have checksums too, and an iterator that met one tells only when it is asked: so it always is.
Created:   RocksDB takes a directory without CURRENT for a new database, and makes one beside tables and logs that are
           there. CURRENT is durable before it makes any of them, and before its second MANIFEST: with one of these and
           without CURRENT, a file was lost, and nothing is touched. MANIFEST-000001 alone is what a crash leaves of a
           first start.
Full disk: RocksDB refuses every write after one that failed, and serves reads. Before the next try it is closed and
           opened again, which needs room. So a stand-in is opened first, read-only, which needs none: it serves reads
           from then on, also if the other cannot be opened, until a later try can. A lookup that is under way on the
           old one keeps it, and RocksDB's lock with it, for a moment: then the next try opens it.
Read-only: RocksDB then writes nothing at all, not even its own diary; its log is replayed into memory.
Errors:    rocksdict raises plain `Exception` with RocksDB's text, translated here and nowhere else.
"""

from __future__ import annotations

import glob
import logging
import re
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

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
from magnetar.storage.extents import REMEDY
from magnetar.storage.ordered_store import Changes, OrderedStore

_log = logging.getLogger(__name__)

_WRITE_BUFFER_BYTES = 16 * 2**20  # A batch is a few hundred KiB: a table file every minute or so under full load.
_BLOCK_CACHE_BYTES = 16 * 2**20
_OPEN_FILES_MAX = 256
_INFO_LOGS_MAX = 2  # RocksDB's own diary.
_CURRENT = "CURRENT"  # Names the MANIFEST, which names everything else.
_BEHIND_CURRENT = re.compile(r"\d+\.(sst|log)|MANIFEST-(?!0*1$)\d+")
_ALL_FILES = -1  # Opened at once: whoever compacts meanwhile may then remove them.

_Answer = TypeVar("_Answer")


class RocksDbStore(OrderedStore):
    def __init__(self, path: str, *, read_only: bool = False) -> None:
        """Blocking: opens or creates the database; replays RocksDB's log. `read_only`: one that is there already."""
        self._path = path
        self._is_read_only = read_only
        self._write_options = WriteOptions()
        self._write_options.sync = True
        self._db = self._opened(_options(), read_only=read_only)
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
            db.write(batch, self._write_options)
        except Exception as error:
            self._is_failed = True
            raise self._translated("write to", error) from error

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._close_db(self._db)

    def _reopen(self) -> None:
        """Whoever reads meanwhile is served. DiskFullError: by the stand-in from now on, until a later try."""
        if not self._is_stand_in:
            options = _options()
            options.set_max_open_files(_ALL_FILES)
            self._exchange(self._opened(options, read_only=True))
            self._is_stand_in = True
        try:
            self._exchange(self._opened(_options(), read_only=False))
        except FileLockedError as error:  # By nobody else: the directory is ours.
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
        except Exception as error:  # Closed all the same. What it could not write to a table is in its log.
            _log.warning("closing the location index %s: %s", self._path, error)

    def _opened(self, options: Options, *, read_only: bool) -> Rdict:
        self._check_current()
        try:
            return _open(self._path, options, read_only=read_only)
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
                f"cannot open the location index {self._path}: its file {_CURRENT} is gone, and {found[0]} shows that "
                f"there was one; {REMEDY}"
            )

    def _ask(self, question: Callable[[Rdict], _Answer]) -> _Answer:
        while True:
            db = self._usable()
            try:
                return question(db)
            except Exception as error:
                if db is self._db:
                    raise self._translated("read", error) from error
                # Else: it was exchanged for another, and closed, since it was looked up.

    def _usable(self) -> Rdict:
        if self._is_closed:
            raise ClosedError(f"the location index {self._path} is closed")
        return self._db

    def _iterator(self) -> Any:
        return self._ask(lambda db: db.iter())

    def _check(self, entries: Any) -> None:
        """The end of the keys, or of what could be read?"""
        try:
            entries.status()
        except Exception as error:
            raise self._translated("read", error) from error

    def _translated(self, action: str, error: Exception) -> MagnetarError:
        return translate(f"cannot {action} the location index {self._path}", str(error))


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
