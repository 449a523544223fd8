"""The durable half of a bookie on a simulated machine: directories, marks, journals, storage. No socket, no cookie."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence

from magnetar.bookie.adds import DurableAdds
from magnetar.bookie.directories import BookieDirectories, DirectoryLayout, open_directories
from magnetar.bookie.journals import Journals
from magnetar.config.storage import JournalConfig
from magnetar.errors import JournalFailedError
from magnetar.runtime.runtime import Runtime
from magnetar.sim.device import Crash, SyncSites
from magnetar.sim.machine import SimMachine
from magnetar.storage.entry_log.ledger_dirs import LedgerDirs
from magnetar.storage.frames import add_frame, by_ledger, scan_frames
from magnetar.storage.index.location_index import LocationIndex
from magnetar.storage.index.ordered_store import MemoryImage, MemoryStore
from magnetar.storage.journal.format import ExplicitLac, Fence, RecordKind, encode_explicit_lac, encode_fence
from magnetar.storage.journal.mark import JournalMark
from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.hot_path import encode_adds_done, scan_add_responses
from tests.unit.storage.journal_worlds import wait_until
from tests.unit.storage.samples import entry_bytes, small_config

KEY = b"k" * 20
SMALL = JournalConfig(file_bytes_max=4_096, group_bytes_max=512)


class World:
    """A machine with as many journal and ledger devices as asked for; what it holds outlives its processes."""

    def __init__(self, seed: str = "0", *, journals: int = 2, ledgers: int = 1, sites: SyncSites | None = None) -> None:
        self.machine = SimMachine(seed)
        self.journals = [f"/journal-{number}" for number in range(journals)]
        self.ledgers = [f"/ledgers-{number}" for number in range(ledgers)]
        for path in (*self.journals, *self.ledgers):
            self.machine.mount(path).sites = sites if sites is not None else self.machine.sites
        self.image = MemoryImage()
        self.runtime: Runtime = self.machine.start()
        self._nodes: list[Node] = []

    def layout(self, journals: Sequence[str] | None = None) -> DirectoryLayout:
        return DirectoryLayout(tuple(journals or self.journals), tuple(self.ledgers))

    async def open(self, journals: Sequence[str] | None = None) -> Node:
        node = Node(self, self.layout(journals))
        self._nodes.append(node)
        try:
            await node.open()
        except BaseException:
            await node.aclose()
            raise
        return node

    async def open_storage(self, submitted: Callable[[], int], mark: int) -> LedgerStorage:
        dirs = await LedgerDirs.open(self.runtime, self.ledgers)
        try:
            return await LedgerStorage.open(
                dirs, self.index(), self.runtime.entropy, small_config(), submitted=submitted, journal_mark=mark
            )
        except BaseException:
            await dirs.aclose()
            raise

    def index(self) -> LocationIndex:
        reading, writing = self.runtime.offload(name="index-read"), self.runtime.offload(name="index-write")
        return LocationIndex(MemoryStore(self.image), reading, writing)

    def crash(self, kind: Crash = Crash.POWER_LOSS) -> None:
        self.machine.crash(kind)
        for node in self._nodes:
            node.die()
        self._nodes.clear()
        self.runtime = self.machine.start()


class Node:
    def __init__(self, world: World, layout: DirectoryLayout) -> None:
        self.world = world
        self.layout = layout
        self.durable: list[object] = []
        self.failures: list[JournalFailedError] = []
        self.directories: BookieDirectories | None = None
        self.storage: LedgerStorage | None = None
        self.journals: Journals | None = None

    async def open(self) -> None:
        self.directories = await open_directories(self.world.runtime, self.layout)
        self.marks = await JournalMark.open({d.path: d.disk for d in self.directories.ledger}, self.layout.journal)
        self.journals = Journals(self.layout.journal, self.marks, self._on_durable, self.failures.append)
        self.storage = await self.world.open_storage(self.journals.submitted, self.marks.sequence)
        await self.journals.open(self.world.runtime, SMALL, self.storage)

    def _on_durable(self, tokens: list[object]) -> None:
        for token in tokens:
            for part in token if isinstance(token, list) else [token]:
                self.durable += _entries_of(part) if isinstance(part, DurableAdds) else [part]

    def add(self, entries: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
        """One run, as a connection's buffer has it. Returns the entries of it that are durable."""
        assert self.storage is not None
        assert self.journals is not None
        chunk = b"".join(add_frame(KEY, entry_bytes(*entry)) for entry in entries)
        run = scan_frames(chunk, "a test's run")
        stretches = by_ledger(run)
        ledger_ids = [ledger_id for ledger_id, a, b in stretches for _ in range(a, b)]
        self.storage.add_many(ledger_ids, chunk, run.entry_ids, run.offsets, run.lengths)
        of_all = ledger_ids if len(stretches) > 1 else ledger_ids[:1]
        token = DurableAdds(None, chunk, run.offsets, of_all)  # type: ignore[arg-type]
        self.journals.front.submit(RecordKind.ADDS, (chunk,), [token])
        return list(zip(ledger_ids, run.entry_ids, strict=True))

    def fence(self, ledger_id: int) -> str:
        return self._note(
            ledger_id, RecordKind.FENCE, encode_fence(Fence(ledger_id, KEY)), LedgerFlags(master_key=KEY, fenced=True)
        )

    def explicit_lac(self, ledger_id: int, body: bytes) -> str:
        record = encode_explicit_lac(ExplicitLac(ledger_id, KEY, body))
        return self._note(ledger_id, RecordKind.EXPLICIT_LAC, record, LedgerFlags(master_key=KEY, explicit_lac=body))

    def _note(self, ledger_id: int, kind: RecordKind, record: bytes, flags: LedgerFlags) -> str:
        assert self.storage is not None
        assert self.journals is not None
        self.storage.set_flags(ledger_id, flags)
        token = f"{kind.name} {ledger_id} {len(self.durable)}"
        self.journals.front.submit(kind, (record,), token)
        return token

    async def write(self, *entries: tuple[int, int]) -> None:
        await self.wait_durable(*self.add(entries))

    async def wait_durable(self, *tokens: object) -> None:
        await wait_until(lambda: all(token in self.durable for token in tokens))

    async def flush(self) -> None:
        assert self.storage is not None
        assert self.journals is not None
        await self.journals.settle(await self.storage.flush())

    async def has(self, *entries: tuple[int, int]) -> None:
        assert self.storage is not None
        for entry in entries:
            assert bytes(await self.storage.get_entry(*entry)) == entry_bytes(*entry)

    async def flags(self, ledger_id: int) -> LedgerFlags:
        assert self.storage is not None
        return await self.storage.get_flags(ledger_id) or NO_FLAGS

    def die(self) -> None:
        """Its tasks end with it."""
        for journal in self.journals.all if self.journals is not None else ():
            journal._writer.cancel()
            journal._following.cancel()

    async def aclose(self) -> None:
        if self.journals is not None:
            await self.journals.aclose()
        if self.storage is not None:
            await self.storage.aclose()
        if self.directories is not None:
            await self.directories.aclose()


def _entries_of(token: DurableAdds) -> list[tuple[int, int]]:
    """Returns the entries as the answer to their writer names them."""
    answers = encode_adds_done(token.frames, token.offsets)
    run = scan_add_responses(answers, 0, len(answers))
    return list(zip(run.ledger_ids, run.entry_ids, strict=True))
