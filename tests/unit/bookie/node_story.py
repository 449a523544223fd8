"""Stories of a bookie that crashes again and again; after each start, everything it ever promised is looked for.

Invariant: what is promised stays: acknowledged entries, byte for byte; fences; master keys; explicit LACs; what an
           operator set; the bookie's id. The index names only existing logs. Files that were given up stay away. After
           an orderly stop, damage in the journal is not taken for a torn write, and a log has its ledger map.
Order:     a life consists of acts, one after the other. The crash comes in the middle of one, or right after it, which
           is when a promise is youngest.
           A busy bookie flushes, collects and compacts by itself, as fast as it can; a quiet one when an act says so.
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import itertools
from collections.abc import Awaitable, Callable
from random import Random

import pytest

from magnetar.bookie.directories import DirectoryLayout, open_directories
from magnetar.bookie.identity import identify_for_repair
from magnetar.bookie.limbo import find_suspects, repair
from magnetar.bookie.read_only import ReadOnlyReason, write_operator_status
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import JournalConfig, StorageConfig
from magnetar.errors import CookieMismatchError, JournalDamagedError, MagnetarError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.ledger_metadata import Fragment, LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.memory import MemoryServer
from magnetar.sim.device import Crash, SyncSites
from magnetar.sim.machine import SimEntropy
from magnetar.storage.ledger_storage import LedgerStorage, open_storage
from magnetar.testing.waiting import until
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import AddEntry, ReadEntry, ReadLac, ReadLacResponse, WriteLac
from tests.unit.bookie.sim_node import Client, SimNode, bookie_config
from tests.unit.storage.samples import change_flags
from tests.unit.storage.test_compaction import referenced_logs
from workloads.bookie_load import PASSWORD, BookieLoad, payload_of

KEY, OTHER_KEY = master_key(PASSWORD), b"o" * 20
DIGEST = entry_digest(DigestType.CRC32C)
ENTRY_BYTES = 120
METADATA = MetadataConfig(url="memory:", session_timeout_ms=400, operation_timeout_ms=5_000)
PATHS = BookKeeperPaths()
KINDS_OF_CRASH = (Crash.DROP_UNSYNCED, Crash.DROP_UNSYNCED, Crash.POWER_LOSS, Crash.POWER_LOSS, Crash.KILL)

Act = Callable[[], Awaitable[None]]


def story_config(*, busy: bool, preallocated_bytes: int, journals: int = 1) -> Config:
    return Config(
        metadata=METADATA,
        journal=JournalConfig(
            file_bytes_max=4_096,
            group_bytes_max=900,
            queue_entries_max=8,
            queue_bytes_max=6_000,
            preallocated_bytes=preallocated_bytes,
        ),
        storage=StorageConfig(
            write_cache_bytes_max=4_096 if busy else 1 << 20,
            flush_interval_ms=25 if busy else 3_600_000,
            block_bytes=300,
            log_bytes_max=4_096,
            read_ahead_bytes=1_000,
            read_cache_bytes_max=2_000,
            open_logs_max=2,
            index_reserve_bytes=0,
            gc_interval_ms=30 if busy else 86_400_000,
            minor_compaction_interval_ms=1,
            major_compaction_interval_ms=1,
            compaction_bytes_per_s=2**30,
        ),
        bookie=bookie_config(journals=journals),
    )


class Promises:
    """What clients and operators got an answer for, and what they tried without one."""

    def __init__(self) -> None:
        self.acknowledged: dict[int, dict[int, None]] = {}
        self.next_entry: dict[int, int] = {}
        self.fenced: dict[int, None] = {}
        self.untouchable: dict[int, None] = {}
        """A fence was asked for, and maybe answered: no more plain adds."""
        self.lacs: dict[int, list[bytes | None]] = {}
        """The last one that was acknowledged, or None, and those tried since."""
        self.limbo: dict[int, None] = {}
        self.is_read_only = False
        self.bookie_id: str | None = None
        self.finished_logs: set[int] = set()

    def forget(self, ledger_id: int) -> None:
        """Its metadata was deleted: only the fence must stay."""
        self.acknowledged.pop(ledger_id, None)
        self.lacs.pop(ledger_id, None)
        self.untouchable[ledger_id] = None

    @property
    def writable(self) -> list[int]:
        return [ledger_id for ledger_id in self.next_entry if ledger_id not in self.untouchable]


class Story:
    def __init__(self, seed: int, sites: SyncSites, *, busy: bool) -> None:
        self.random = Random(f"{seed}/story")
        self.busy = busy
        self.promises = Promises()
        self.crashes = 0
        self.last_lac = -1
        self.logs_removed = self.evictions = 0
        entropy = SimEntropy(f"{seed}/metadata")
        self.server = MemoryServer(entropy, METADATA)
        config = story_config(busy=busy, preallocated_bytes=(0, 2**16)[seed % 2], journals=(1, 1, 2)[seed % 3])
        self.node = SimNode(f"{seed}", self.server, config, sites)
        self.sites = sites
        self._entropy = entropy
        self._loads: list[BookieLoad] = []
        self._ledger_ids = itertools.count(1)

    async def run(self, *endings: Ending) -> None:
        """Some lives, then the endings, if any."""
        async with self.server.connect() as store:
            await init_cluster(store, PATHS, self._entropy)
            self.ledgers = LedgerMetadataStore(store, PATHS, self._entropy)
            try:
                if not self.busy:
                    await self.first_hours()
                for _ in range(5 if self.busy else 3):
                    await self.life()
                for ending in endings:
                    await ending(self)
            finally:
                self.node.bury()

    # --- one life -----------------------------------------------------------------------------------------------------

    async def first_hours(self) -> None:
        """Moments that chance rarely meets: before the first mark, in the first flush, after an orderly stop."""
        await self._start()
        await self.put_in_limbo()
        self.crash(Crash.DROP_UNSYNCED)
        await self._start()
        await self.check()
        await self.write()
        flushing = asyncio.ensure_future(self.flush())
        await until(lambda: self.node.bookie._storage.mark, "the index has the first flush")
        assert not flushing.done()
        self.crash(Crash.DROP_UNSYNCED)
        await self._start()
        await self.check()
        await self.write()
        await self.flush()
        await self.stop()
        self.crash(Crash.DROP_UNSYNCED)

    async def life(self) -> None:
        if self.promises.bookie_id is not None and self.chance(0.4):
            await self.operator_speaks(not self.promises.is_read_only)
        if self.chance(0.2) and not await self.completes(self._start()):
            return
        if self.node._bookie is None:
            await self._start()
        await self.check()
        while self.chance(0.85):
            act = self.random.choice(self.acts())
            if self.chance(0.3):
                if not await self.completes(act()):
                    return
            else:
                await act()
        await self.end_of_life()

    def acts(self) -> list[Act]:
        acts: list[Act] = [self.write, self.write, self.fence, self.write_lac, self.delete_some]
        return acts if self.busy else [*acts, self.flush, self.collect, self.collect, self.put_in_limbo]

    async def completes(self, act: Awaitable[None]) -> bool:
        """Or crashes in the middle of it."""
        task = asyncio.ensure_future(act)
        done, _ = await asyncio.wait([task], timeout=self.random.uniform(0, 0.06))
        if done:
            await task
            return True
        self.crash()
        task.cancel()  # The client's side of it: what the bookie does is not cancelled, it stands still.
        return False

    async def end_of_life(self) -> None:
        if self.chance(0.25):
            await self.stop()
            self.crash(Crash.DROP_UNSYNCED)
        else:
            names = self.node.journal_names() | self.node.log_names()
            self.crash()
            if not self.busy:  # Otherwise a removal may have been in progress.
                assert self.node.journal_names() | self.node.log_names() <= names, "files that were removed are back"

    async def _start(self) -> None:
        bookie = await asyncio.shield(self.node.start())
        bookie.table.ledgers_max = 4  # Less than a setting may say: the story has few ledgers.
        self.promises.bookie_id = self.promises.bookie_id or bookie.bookie_id

    async def stop(self) -> None:
        if not self.busy:  # Otherwise the stop may give up a flush in progress, and its log with it.
            self.promises.finished_logs = self.node.bookie._storage._writer.log_ids()
        await self.node.stop()

    def crash(self, kind: Crash | None = None) -> None:
        for load in self._loads:
            acknowledged = self.promises.acknowledged.get(load.ledger_id)
            if acknowledged is not None:
                acknowledged.update(dict.fromkeys(load.acknowledged))
        self._loads.clear()
        if self.node._bookie is not None:
            self.logs_removed += self.node.bookie.collector.compactor.statistics.logs_removed
            self.evictions += self.node.bookie.table.evictions
        self.node.crash(kind or self.random.choice(KINDS_OF_CRASH))
        self.crashes += 1

    # --- acts ---------------------------------------------------------------------------------------------------------

    async def write(self, ledgers: int = 3) -> None:
        if self.promises.is_read_only:
            return
        loads = [await self._begin_load(await self._some_ledger()) for _ in range(self.random.randint(1, ledgers))]
        for load in loads:
            await self._finish_load(load)
            await load.aclose()

    async def _begin_load(self, ledger_id: int) -> BookieLoad:
        load = await BookieLoad.connect("127.0.0.1", self.node.bookie.port, ledger_id, entry_bytes=ENTRY_BYTES)
        self._loads.append(load)
        first = self.promises.next_entry[ledger_id]
        load.begin(self.random.randint(1, 12), first)
        self.promises.next_entry[ledger_id] = first + 10_000  # More than it will send: no id is used twice.
        return load

    async def _finish_load(self, load: BookieLoad) -> None:
        await load.wait_for(lambda load: len(load.acknowledged) > 10)
        load.finish()
        await load.wait_for(lambda load: not load.in_flight)
        assert not load.is_lost
        assert not load.refused, load.refused

    async def _some_ledger(self) -> int:
        writable = self.promises.writable
        if len(writable) > 3 and self.chance(0.8):
            return self.random.choice(writable)
        ledger_id = await self._create()
        self.promises.next_entry[ledger_id] = 0
        self.promises.acknowledged[ledger_id] = {}
        return ledger_id

    async def _create(self) -> int:
        ledger_id = next(self._ledger_ids)
        assert self.promises.bookie_id is not None
        await self.ledgers.create(
            LedgerMetadata(
                ledger_id=LedgerId(ledger_id), ensemble_size=1, write_quorum=1, ack_quorum=1,
                fragments=(Fragment(EntryId(0), (BookieId(self.promises.bookie_id),)),),
            )
        )  # fmt: skip
        return ledger_id

    async def fence(self) -> None:
        if self.promises.writable and self.chance(0.7):
            ledger_id = self.random.choice(self.promises.writable)
        else:
            ledger_id = next(self._ledger_ids)  # Not in the metadata, and never seen here.
        self.promises.untouchable[ledger_id] = None
        code = await self._ask_fence(ledger_id)
        assert code in (Code.EOK, Code.ENOENTRY, Code.ENOLEDGER), code
        self.promises.fenced[ledger_id] = None

    async def _ask_fence(self, ledger_id: int) -> Code:
        client = await self.client()
        answer = await client.ask(ReadEntry(ledger_id, LAST_ENTRY, fence=True, master_key=KEY))
        client.close()
        return answer.code

    async def write_lac(self) -> None:
        if self.promises.is_read_only or not self.promises.writable:
            return
        ledger_id = self.random.choice(self.promises.writable)
        self.last_lac += self.random.randint(1, 10)  # A writer's LAC only grows.
        lac = self.last_lac
        body = DIGEST.seal_lac(ledger_id, lac)
        self.promises.lacs.setdefault(ledger_id, [None]).append(body)
        client = await self.client()
        answer = await client.ask(WriteLac(ledger_id, lac, KEY, body))
        client.close()
        assert answer.code is Code.EOK, answer
        tried = self.promises.lacs.get(ledger_id, [])
        if body in tried:  # Else a greater one was acknowledged meanwhile.
            del tried[: tried.index(body)]

    async def flush(self) -> None:
        await asyncio.shield(self.node.bookie.flush())

    async def delete_some(self) -> None:
        """Most ledgers go, so that the logs they share with others are worth rewriting."""
        known = list(self.promises.acknowledged)
        for ledger_id in self.random.sample(known, len(known) * 2 // 3):
            self.promises.forget(ledger_id)
            await self.ledgers.delete(LedgerId(ledger_id), 0)

    async def collect(self) -> None:
        """Deleted ledgers go, and the logs that had them are rewritten."""
        await self.flush()
        await asyncio.shield(self.node.bookie.collector.collect())

    async def put_in_limbo(self) -> None:
        """A flag that no journal record stands for: it is durable when the flush has returned."""
        ledger_id = await self._create()
        await change_flags(self.node.bookie._storage, ledger_id, limbo=True)
        await self.flush()
        self.promises.limbo[ledger_id] = None

    async def operator_speaks(self, is_read_only: bool) -> None:
        """The way of `magnetar bookie readonly`, on a stopped bookie."""
        directories = await self.node.open_directories()
        await write_operator_status(directories, self._entropy, is_read_only=is_read_only)
        self.promises.is_read_only = is_read_only
        self.crash(Crash.DROP_UNSYNCED)

    # --- what must hold -----------------------------------------------------------------------------------------------

    async def check(self) -> None:
        await self.check_node()
        await self.check_entries()
        client = await self.client()
        await self.check_fences_and_keys(client)
        for ledger_id, bodies in self.promises.lacs.items():
            answer = await client.ask(ReadLac(ledger_id))
            assert isinstance(answer, ReadLacResponse)
            assert answer.lac_body in bodies, f"explicit LAC of ledger {ledger_id}"
        for ledger_id in self.promises.limbo:
            code = (await client.ask(ReadEntry(ledger_id, 0))).code
            assert code is Code.EUNKNOWNLEDGERSTATE, f"ledger {ledger_id} was in limbo and is not: {code}"
        client.close()

    async def check_node(self) -> None:
        bookie, promises = self.node.bookie, self.promises
        assert bookie.bookie_id == promises.bookie_id, "this is another bookie"
        is_read_only = ReadOnlyReason.OPERATOR in bookie.switch.reasons
        assert is_read_only is promises.is_read_only, f"read-only by an operator: {is_read_only}"
        storage = bookie._storage
        assert set(await referenced_logs(storage)) <= set(storage.dirs.log_ids()), "the index knows logs that are gone"
        finished, promises.finished_logs = promises.finished_logs, set()
        for log_id in sorted(finished & set(storage.dirs.log_ids())):
            assert await storage.logs.finished_map(log_id) is not None, f"log {log_id} has no ledger map"

    async def check_entries(self) -> None:
        for ledger_id, entry_ids in self.promises.acknowledged.items():
            reader = await BookieLoad.connect("127.0.0.1", self.node.bookie.port, ledger_id, entry_bytes=ENTRY_BYTES)
            assert await reader.wrong_entries(list(entry_ids)) == [], f"ledger {ledger_id}"
            await reader.aclose()

    async def check_fences_and_keys(self, client: Client) -> None:
        if self.promises.is_read_only:
            return  # Every add is refused, for another reason.
        for ledger_id in self.promises.fenced:
            assert await self._code_of_add(client, ledger_id, KEY) is Code.EFENCED, f"ledger {ledger_id}"
        for ledger_id, entry_ids in self.promises.acknowledged.items():
            if entry_ids:
                assert await self._code_of_add(client, ledger_id, OTHER_KEY) is Code.EUA, f"ledger {ledger_id}"

    async def _code_of_add(self, client: Client, ledger_id: int, key: bytes) -> Code:
        payload = payload_of(ledger_id, 10**6, ENTRY_BYTES)
        entry = DIGEST.seal(ledger_id, 10**6, 0, 1, payload) + payload
        return (await client.ask(AddEntry(ledger_id, 10**6, key, entry))).code

    async def client(self) -> Client:
        return await Client.connect(self.node.bookie.port)

    def chance(self, share: float) -> bool:
        return self.random.random() < share


Ending = Callable[[Story], Awaitable[None]]


# --- endings: damage that must be noticed -----------------------------------------------------------------------------


async def damage_behind_an_orderly_stop(story: Story) -> None:
    """A full ledger disk kept the bookie from flushing; the journal was closed, so its end is known."""
    ledger_id, entry_id = await _one_more_entry(story)
    for device in story.node.ledgers:
        device.leave_room(0)
    with contextlib.suppress(MagnetarError):
        await story.stop()
    story.crash(Crash.DROP_UNSYNCED)
    for device in story.node.ledgers:
        device.capacity_bytes = None
    await _damage_is_noticed(story, ledger_id, entry_id)


async def damage_behind_a_restart(story: Story) -> None:
    """What a start has replayed is not a torn write, even if nothing was written since."""
    ledger_id, entry_id = await _one_more_entry(story)
    story.crash(Crash.DROP_UNSYNCED)
    await story.node.start()
    story.crash(Crash.DROP_UNSYNCED)
    await _damage_is_noticed(story, ledger_id, entry_id)


async def power_loss_behind_a_start(story: Story) -> None:
    """A start reads a group that was written and not synced when the bookie was killed; it is durable from then on."""
    ledger_id, _ = await _one_more_entry(story)
    journal, load = story.node.journal, await story._begin_load(ledger_id)
    for _ in range(10_000):
        await asyncio.sleep(0.000_2)
        if any(image.pending and image.path.endswith(".journal") for image in journal.tree.files()):
            break
    story.crash(Crash.KILL)
    load.finish()
    before = story.node.journal_names()
    await story.node.start()
    for path in sorted(before & story.node.journal_names()):
        if path.endswith(".journal"):
            assert journal.durable(path) == journal.cached(path), f"a power loss may change {path}"
    story.crash(Crash.DROP_UNSYNCED)
    await story.node.start()


async def _one_more_entry(story: Story) -> tuple[int, int]:
    if story.promises.is_read_only:
        await story.operator_speaks(False)
    await story.node.start()
    await story.check()
    ledger_id = await story._some_ledger()
    load = await story._begin_load(ledger_id)
    await story._finish_load(load)
    return ledger_id, load.acknowledged[-1]


async def _damage_is_noticed(story: Story, ledger_id: int, entry_id: int) -> None:
    """The bookie refuses to start; after the repair it starts, and denies nothing that it may have forgotten."""
    pattern = payload_of(ledger_id, entry_id, ENTRY_BYTES)
    journal = story.node.journal
    path = next((path for path in sorted(story.node.journal_names()) if pattern in journal.cached(path)), "")
    assert path, "the entry is not in the journal"
    journal.flip_bit(path, journal.cached(path).rindex(pattern) + 1)
    with pytest.raises(JournalDamagedError):
        await story.node.start()
    await _repair(story)
    story.crash(Crash.DROP_UNSYNCED)
    await story.node.start()
    client = await story.client()
    for each, entry_ids in story.promises.acknowledged.items():
        for entry in entry_ids:
            answer = await client.ask(ReadEntry(each, entry))
            assert answer.code in (Code.EOK, Code.EUNKNOWNLEDGERSTATE), f"ledger {each}, entry {entry}: {answer.code}"
    assert (await client.ask(ReadEntry(ledger_id, entry_id))).code is Code.EUNKNOWNLEDGERSTATE


async def _repair(story: Story) -> None:
    """As the command does it."""
    node = story.node
    runtime = node.machine.start()
    layout = DirectoryLayout.from_config(node.config.bookie, base="/")
    directories = await open_directories(runtime, layout)

    async def open_it(submitted: Callable[[], int], mark: int) -> LedgerStorage:
        return await open_storage(runtime, layout.ledger, node.config.storage, submitted=submitted, journal_mark=mark)

    async def rebuild() -> None:
        pytest.fail("no ledger directory was lost")

    async with story.server.connect() as store:
        found = await identify_for_repair(directories, store, PATHS, node.config.bookie)
        suspects = await find_suspects(story.ledgers, found.cookie.bookie_id)
        report = await repair(
            directories,
            found.cookie,
            found.lost,
            suspects,
            entropy=runtime.entropy,
            open_storage=open_it,
            rebuild_index=rebuild,
        )
    assert report.set_aside
    await directories.aclose()


# --- two bookies with one name ----------------------------------------------------------------------------------------


async def rivals(seed: int, sites: SyncSites) -> None:
    """Both start for the first time, at once. One is refused, and must not pass for the other later."""
    entropy = SimEntropy(f"{seed}/metadata")
    server = MemoryServer(entropy, METADATA)
    config = dataclasses.replace(
        story_config(busy=False, preallocated_bytes=0), bookie=bookie_config(bookie_id="one-name")
    )
    nodes = [SimNode(f"{seed}/{name}", server, config, sites) for name in ("left", "right")]
    async with server.connect() as store:
        await init_cluster(store, PATHS, entropy)
        try:
            await _only_one_of(nodes)
        finally:
            for node in nodes:
                node.bury()


async def _only_one_of(nodes: list[SimNode]) -> None:
    results = await asyncio.gather(*(node.start() for node in nodes), return_exceptions=True)
    refused = [isinstance(result, CookieMismatchError) for result in results]
    assert sorted(refused) == [False, True], results
    winner, loser = nodes[refused.index(False)], nodes[refused.index(True)]
    await winner.stop()
    loser.crash(Crash.DROP_UNSYNCED)
    with pytest.raises(CookieMismatchError):
        await loser.start()
