"""A location index that is only looked at: RocksDB opened read-only writes nothing, not even its own diary."""

from __future__ import annotations

from rocksdict import AccessType, Rdict

from magnetar.storage.ordered_store import Changes
from magnetar.storage.rocksdb_store import RocksDbStore, _options


class ReadOnlyRocksDb(RocksDbStore):
    def write(self, changes: Changes) -> None:
        raise AssertionError(f"a stopped bookie's index is not written to: {len(changes.put)} keys")

    def _opened(self) -> Rdict:
        try:
            return Rdict(self._path, _options(), access_type=AccessType.read_only())
        except Exception as error:
            raise self._translated("open", error) from error
