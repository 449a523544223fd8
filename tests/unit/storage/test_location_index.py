"""The location index on RocksDB and in memory, and what only RocksDB can get wrong."""

from __future__ import annotations

import shutil
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest

from magnetar.errors import DiskError, DiskFullError, FileLockedError, IndexDamagedError, SyncFailedError
from magnetar.runtime.system import SystemRuntime
from magnetar.sim.machine import SimMachine
from magnetar.storage.index import rocksdb_store
from magnetar.storage.index.location_index import IndexBatch, LocationIndex
from magnetar.storage.index.ordered_store import Changes, MemoryImage, MemoryStore
from magnetar.storage.index.rocksdb_store import RocksDbStore, translate
from magnetar.storage.ledger_storage import open_rocksdb_index
from tests.contracts.location_index import IndexHarness, LocationIndexContract, extents
from tests.unit.storage.full_device import FullDevice, FullOnce


class MemoryHarness(IndexHarness):
    def __init__(self) -> None:
        self.image = MemoryImage()
        self.machine = SimMachine("index")
        self._open()

    def _open(self) -> None:
        runtime = self.machine.start()
        self.index = LocationIndex(MemoryStore(self.image), runtime.offload(name="r"), runtime.offload(name="w"))

    async def restart(self) -> None:
        await self.index.aclose()
        self._open()

    async def crash(self) -> None:
        from magnetar.sim.device import Crash

        self.machine.crash(Crash.POWER_LOSS)
        self._open()

    async def damage(self, needle: bytes) -> None:
        for key in self.image.keys:
            if needle in key:
                self.image.flip_bit(key, 3)

    def fill_disk(self) -> None:
        self.image.fail_next_write = DiskFullError("no room")


class TestMemoryIndex(LocationIndexContract):
    @pytest.fixture
    async def harness(self) -> AsyncIterator[MemoryHarness]:
        harness = MemoryHarness()
        yield harness
        harness.machine.release_dead()


class RocksDbHarness(IndexHarness):
    def __init__(self, path: Path, index: LocationIndex) -> None:
        self.path = path
        self.index = index
        self._left: list[LocationIndex] = []

    @property
    def store(self) -> RocksDbStore:
        store = self.index._store
        assert isinstance(store, RocksDbStore)
        return store

    async def restart(self) -> None:
        await self.index.aclose()
        self.index = await open_rocksdb_index(SystemRuntime(), str(self.path))

    async def crash(self) -> None:
        """A copy of the files while it is open: what a kill would leave."""
        copy = self.path.with_name("copy")
        shutil.copytree(self.path, copy)
        self._left.append(self.index)
        self.path = copy
        self.index = await open_rocksdb_index(SystemRuntime(), str(copy))

    async def damage(self, needle: bytes) -> None:
        found = [(key, value) for key, value in self.store.ascending(b"", b"\xff") if needle in key]
        assert found
        for key, value in found:
            self.store.write(Changes(put=[(key, bytes((value[0] ^ 8, *value[1:])))]))

    def fill_disk(self) -> None:
        self.store._db = FullOnce(self.store._db)  # type: ignore[assignment]

    async def aclose(self) -> None:
        for index in (*self._left, self.index):
            await index.aclose() if not index._reading._closed else None  # type: ignore[attr-defined]


class TestRocksDbIndex(LocationIndexContract):
    @pytest.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[RocksDbHarness]:
        path = tmp_path / "index"
        harness = RocksDbHarness(path, await open_rocksdb_index(SystemRuntime(), str(path)))
        yield harness
        await harness.aclose()

    async def test_second_process_is_told_that_the_index_is_in_use(self, harness: RocksDbHarness) -> None:
        with pytest.raises(FileLockedError, match="another process has it open"):
            await open_rocksdb_index(SystemRuntime(), str(harness.path))

    async def test_every_batch_is_synced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """RocksDB counts the syncs of its log itself."""
        options = rocksdb_store._options()
        options.enable_statistics()
        monkeypatch.setattr(rocksdb_store, "_options", lambda: options)
        store = RocksDbStore(str(tmp_path / "counted"))
        for number in range(5):
            store.write(Changes(put=[(b"k%d" % number, b"v")]))
        synced = [line for line in str(options.get_statistics()).splitlines() if "rocksdb.wal.synced" in line]
        store.close()
        assert synced == ["rocksdb.wal.synced COUNT : 5"]

    @pytest.mark.parametrize("suffix", [".log", ".sst"])
    async def test_flipped_bit_in_a_file_is_an_error_or_changes_nothing(
        self, harness: RocksDbHarness, tmp_path: Path, suffix: str
    ) -> None:
        """But for the one field that makes a record look like a torn tail: the mark is what finds that."""
        for number in range(1, 6):
            await harness.index.apply(IndexBatch(extents=extents(7, range(number * 50, number * 50 + 50)), mark=number))
        if suffix == ".sst":
            harness.store._db.flush()  # type: ignore[union-attr]
        (path,) = [path for path in harness.path.iterdir() if path.suffix == suffix and path.stat().st_size]
        errors = 0
        for position in range(0, path.stat().st_size, 23 if suffix == ".log" else 41):
            copy = tmp_path / f"flip-{position}"
            shutil.copytree(harness.path, copy)
            damaged = bytearray((copy / path.name).read_bytes())
            damaged[position] ^= 1
            (copy / path.name).write_bytes(damaged)
            errors += await self._is_right_or_an_error(copy)
            shutil.rmtree(copy)
        assert errors

    async def _is_right_or_an_error(self, path: Path) -> int:
        try:
            index = await open_rocksdb_index(SystemRuntime(), str(path))
        except (IndexDamagedError, DiskError):
            return 1
        try:
            if await index.mark() != 5:
                return 1  # `LedgerStorage.open` refuses it: the journal knows of 5.
            for entry in range(50, 300):
                found = await index.find(7, entry)
                assert found is not None
                assert found.holds(entry)
            assert await index.find(7, 300) is None
        except (IndexDamagedError, DiskError):
            return 1
        finally:
            await index.aclose()
        return 0


class TestFullDevice:
    """What RocksDB needs to be opened again is what a full disk has not."""

    @pytest.fixture
    def device(self, monkeypatch: pytest.MonkeyPatch) -> FullDevice:
        return FullDevice(monkeypatch)

    @pytest.fixture
    def store(self, device: FullDevice, tmp_path: Path) -> Iterator[RocksDbStore]:
        store = RocksDbStore(str(tmp_path / "index"))
        store.write(Changes(put=[(b"a", b"1"), (b"b", b"2")]))
        device.is_full = True
        yield store
        store.close()

    def test_is_read_from_as_long_as_it_is_full(self, store: RocksDbStore) -> None:
        for _ in range(4):
            with pytest.raises(DiskFullError):
                store.write(Changes(put=[(b"c", b"3")]))
            assert store.get(b"a") == b"1"
            assert list(store.ascending(b"", b"z")) == [(b"a", b"1"), (b"b", b"2")]
            assert list(store.descending(b"z", b"b")) == [(b"b", b"2")]

    def test_takes_writes_again_when_room_returns(self, store: RocksDbStore, device: FullDevice) -> None:
        for _ in range(3):
            with pytest.raises(DiskFullError):
                store.write(Changes(put=[(b"c", b"3")]))
        device.is_full = False
        assert store.get(b"b") == b"2"
        store.write(Changes(put=[(b"c", b"3")], removed=[b"a"]))
        store.write(Changes(put=[(b"d", b"4")]))
        assert list(store.ascending(b"", b"z")) == [(b"b", b"2"), (b"c", b"3"), (b"d", b"4")]
        assert device.opened == 2

    def test_lookup_under_way_when_it_is_opened_again_ends_well(self, store: RocksDbStore, device: FullDevice) -> None:
        """It keeps the old database, which cannot be opened twice, so the first try has to be put off."""
        with pytest.raises(DiskFullError):
            store.write(Changes(put=[(b"c", b"3")]))
        device.is_full = False
        lookup = store.ascending(b"", b"z")
        assert next(lookup) == (b"a", b"1")
        with pytest.raises(DiskFullError, match="a lookup that began before"):
            store.write(Changes(put=[(b"c", b"3")]))
        assert store.get(b"b") == b"2"
        assert list(lookup) == [(b"b", b"2")]
        del lookup
        store.write(Changes(put=[(b"c", b"3")]))
        assert store.get(b"c") == b"3"

    def test_lookup_that_meets_the_exchange_asks_the_new_one(self, store: RocksDbStore, device: FullDevice) -> None:
        with pytest.raises(DiskFullError):
            store.write(Changes(put=[(b"c", b"3")]))
        device.is_full = False
        seen = store._db
        seen.get = lambda key: (store.write(Changes()), seen._db.get(key))[1]  # type: ignore[method-assign, attr-defined]
        assert store.get(b"a") == b"1"
        assert store._db is not seen


class TestLostFiles:
    """RocksDB makes a database anew where it finds no CURRENT, and says afterwards what else it has found."""

    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        """With a table, and with a log as a kill leaves it."""
        store = RocksDbStore(str(tmp_path / "made"))
        store.write(Changes(put=[(b"a", b"1")]))
        store.close()
        store = RocksDbStore(str(tmp_path / "made"))
        store.write(Changes(put=[(b"b", b"2")]))
        shutil.copytree(tmp_path / "made", tmp_path / "index")
        store.close()
        return tmp_path / "index"

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("left", ["*.sst", "*.log", "MANIFEST-*", "*"])
    def test_without_current_nothing_is_made_beside_what_is_left(self, path: Path, left: str, read_only: bool) -> None:
        kept = set(path.glob(left))
        for file in path.iterdir():
            if file.name == "CURRENT" or file not in kept:
                file.unlink()
        before = {file.name: file.read_bytes() for file in path.iterdir()}
        for _ in range(2):
            with pytest.raises(IndexDamagedError, match=r"CURRENT is missing.*magnetar bookie index rebuild"):
                RocksDbStore(str(path), read_only=read_only)
        assert {file.name: file.read_bytes() for file in path.iterdir()} == before

    def test_first_start_that_was_cut_off_goes_on(self, path: Path) -> None:
        """The steps in which RocksDB makes a database, up to the one that gives CURRENT its name."""
        shutil.rmtree(path)
        for step in (
            "",
            "rocksdict-config.json",
            "LOG",
            "LOCK",
            "000000.dbtmp",
            "IDENTITY",
            "MANIFEST-000001",
            "000001.dbtmp",
        ):
            path.mkdir(exist_ok=True)
            if step:
                (path / step).write_bytes(b"{}" if step.endswith("json") else b"")
            copy = Path(shutil.copytree(path, path.with_name(f"cut off at {step}")))
            store = RocksDbStore(str(copy))
            store.write(Changes(put=[(b"c", b"3")]))
            assert list(store.ascending(b"", b"z")) == [(b"c", b"3")]
            store.close()

    @pytest.mark.parametrize("read_only", [False, True])
    @pytest.mark.parametrize("damage", ["cut", "zeroed"])
    def test_manifest_without_its_end_is_refused_and_nothing_of_the_index_changes(
        self, tmp_path: Path, damage: str, read_only: bool
    ) -> None:
        """RocksDB would open an older set of tables, and delete the others."""
        store = RocksDbStore(str(tmp_path / "made"))
        for number in range(3):
            store.write(Changes(put=[(b"%d" % number, b"value")]))
            store._db.flush()
        store.write(Changes(put=[(b"3", b"value")]))
        shutil.copytree(tmp_path / "made", tmp_path / "killed")
        store.close()
        manifest = next((tmp_path / "killed").glob("MANIFEST-*")).name
        content = (tmp_path / "killed" / manifest).read_bytes()
        for size in range(0, len(content), 97):
            path = tmp_path / "index"
            shutil.copytree(tmp_path / "killed", path)
            (path / manifest).write_bytes(content[:size] + bytes(len(content) - size if damage == "zeroed" else 0))
            tables = sorted(file.name for file in path.glob("*.sst"))
            with pytest.raises(IndexDamagedError, match="magnetar bookie index rebuild"):
                RocksDbStore(str(path), read_only=read_only)
            assert sorted(file.name for file in path.glob("*.sst")) == tables
            shutil.rmtree(path)
        whole = RocksDbStore(str(tmp_path / "killed"), read_only=read_only)
        assert [whole.get(b"%d" % number) for number in range(4)] == [b"value"] * 4
        whole.close()

    @pytest.mark.parametrize("read_only", [False, True])
    def test_without_its_manifest_the_error_says_what_to_do(self, path: Path, read_only: bool) -> None:
        for file in path.glob("MANIFEST-*"):
            file.unlink()
        with pytest.raises(IndexDamagedError, match="magnetar bookie index rebuild"):
            RocksDbStore(str(path), read_only=read_only)


@pytest.mark.parametrize(
    ("reason", "error"),
    [
        ("IO error: No space left on device: While appending to file: x", DiskFullError),
        ("Corruption: block checksum mismatch", IndexDamagedError),
        ("IO error: While lock file: /x/LOCK: Resource temporarily unavailable", FileLockedError),
        ("IO error: While fdatasync: /x/000004.log: Input/output error", SyncFailedError),
        ("IO error: While fsync: /x: Input/output error", SyncFailedError),
        ("IO error: While open a file: Permission denied", DiskError),
    ],
)
def test_errors_of_the_library_become_ours(reason: str, error: type[Exception]) -> None:
    assert type(translate("cannot write", reason)) is error


async def test_index_that_is_opened_read_only_is_read_and_nothing_of_it_changes(tmp_path: Path) -> None:
    path = tmp_path / "index"
    index = await open_rocksdb_index(SystemRuntime(), str(path))
    (extent,) = extents(7, range(5))
    await index.apply(IndexBatch(extents=[extent]))
    await index.aclose()
    before = {file.name: file.read_bytes() for file in path.iterdir()}
    index = await open_rocksdb_index(SystemRuntime(), str(path), read_only=True)
    assert await index.find(7, 3) == extent
    with pytest.raises(AssertionError, match="looked at"):
        await index.apply(IndexBatch(extents=[extent]))
    await index.aclose()
    assert {file.name: file.read_bytes() for file in path.iterdir()} == before
