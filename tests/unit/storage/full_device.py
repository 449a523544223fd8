"""RocksDB on a device without room, on any machine: its own words, where it would meet a full disk."""

from __future__ import annotations

from typing import Any

import pytest
from rocksdict import Options, Rdict

from magnetar.storage.index import rocksdb_store

_NO_ROOM = "IO error: No space left on device: While appending to file: 000004.log: No space left on device"


class FullOnce:
    """Stands before a database and lets one write meet a full disk, as RocksDB words it."""

    def __init__(self, db: Any) -> None:
        self._db = db

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, *_: object) -> None:
        raise Exception(_NO_ROOM)


class FullDevice:
    """RocksDB on a device that may be full: then nothing is written, and only what writes nothing can be opened."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.is_full = False
        self.opened = 0
        """To be written to."""
        self._real_open = rocksdb_store._open
        monkeypatch.setattr(rocksdb_store, "_open", self._open)

    def _open(self, path: str, options: Options, *, read_only: bool) -> Any:
        if read_only:
            return self._real_open(path, options, read_only=True)
        if self.is_full:
            raise Exception(_NO_ROOM)
        self.opened += 1
        return _OnDevice(self._real_open(path, options, read_only=False), self)


class _OnDevice:
    """Refuses every write after one that failed, as RocksDB does."""

    def __init__(self, db: Rdict, device: FullDevice) -> None:
        self._db = db
        self._device = device
        self._has_failed = False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._db, name)

    def write(self, *arguments: Any) -> None:
        self._has_failed = self._has_failed or self._device.is_full
        if self._has_failed:
            raise Exception(_NO_ROOM)
        self._db.write(*arguments)
