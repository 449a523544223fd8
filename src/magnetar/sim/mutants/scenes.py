"""Scenes: short directed runs, each of which shows one planted bug on every seed, and passes without it.

    report = run_scene(16, seed=3, planted=True)        violated on every seed
    report = run_scene(16, seed=3, planted=False)       clean on every seed

A scene has three bookies and two clients, no faults, and the settings that its seed draws, except for what it counts
on: no client is impatient, and nothing is flushed or collected by itself. `fence`, `read` and `add` speak to one
bookie, as a task of a client's process. A scene waits for conditions, never for times. The invariants of every world
watch it, and it checks what it is about itself.

Limits:    A start may cost what follows from the bytes on the disks, whatever bytes they are (81, 82). The payloads
           hold what the formats on disk have as their marks, so that a search for a mark meets one at every step.
           Lines and bytes are counted (sim/effort.py), so the result is the same on every machine. The budget is far
           above what a start needs, and far below what it takes with one of the bugs.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, NamedTuple, TypeVar

from magnetar.bookie.bookie import Bookie
from magnetar.errors import BookieUnavailableError
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.recovery.recovery import RecoveryProgress
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.sim.bundles.cluster import BundleCluster
from magnetar.sim.bundles.scenario import BUNDLES
from magnetar.sim.bundles.watch import BundleWatch
from magnetar.sim.bundles.workload import BundleWorkload
from magnetar.sim.device import Crash, Fault, FileImage
from magnetar.sim.effort import measured
from magnetar.sim.ledgers.cluster import BookieNode, ClientNode, Cluster
from magnetar.sim.ledgers.invariants import ALL
from magnetar.sim.ledgers.nemesis import is_being_closed
from magnetar.sim.ledgers.options import PORT, TIGHT_BOOKIE, Options, draw
from magnetar.sim.ledgers.watch import BookieWatch, Watch
from magnetar.sim.ledgers.workload import Acks, Workload
from magnetar.sim.mutants.registry import MUTANTS
from magnetar.sim.run import Report, Script, live
from magnetar.sim.world import World
from magnetar.storage.entry_log.format import ENTRIES
from magnetar.storage.journal.format import FILE_HEADER_BYTES, decode_file_header
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AnyRequest, ReadEntry

# --- the world of a scene ---------------------------------------------------------------------------------------------


T = TypeVar("T")

WAIT_S: Final = 30.0
_NEVER_MS: Final = 600_000
_TRIES_MAX: Final = 5
_KEY: Final = master_key(b"")
_DIGEST: Final = entry_digest(DigestType.CRC32C)

Scene = Callable[["SceneWorld"], Awaitable[None]]


def scene_options(
    seed: int,
    storage: dict[str, Any] | None = None,
    journal: dict[str, Any] | None = None,
    bookie: dict[str, Any] | None = None,
    ledger: dict[str, Any] | None = None,
    **replaced: Any,
) -> Options:
    """Adds the values of the sections to the settings of the bookies, and `ledger` to those of the clients."""
    drawn = draw(seed)
    quiet = {
        "flush_interval_ms": _NEVER_MS,
        "write_cache_bytes_max": 1 << 20,
        "gc_interval_ms": _NEVER_MS,
        "minor_compaction_interval_ms": _NEVER_MS,
        "major_compaction_interval_ms": _NEVER_MS,
    }
    # No request waits at a limit: a scene is about what meets at one bookie at once.
    roomy = {name: value for name, value in drawn.bookie["bookie"].items() if name not in TIGHT_BOOKIE}
    sections = {
        "bookie": {**roomy, **(bookie or {})},
        "storage": {**drawn.bookie["storage"], **quiet, **(storage or {})},
        "journal": {**drawn.bookie["journal"], **(journal or {})},
    }
    patient = {
        "connect_timeout_ms": 100,
        "reconnect_backoff_ms": 5,
        "reconnect_backoff_max_ms": 20,
        "add_timeout_ms": 60_000,
        "add_quorum_timeout_ms": 120_000,
        "read_timeout_ms": 200,
        "recovery_timeout_ms": 20_000,
    }
    options = dataclasses.replace(
        drawn,
        ensemble=3,
        write=3,
        ack=2,
        bookies=3,
        clients=2,
        faults=(),
        in_line=False,
        bookie=sections,
        ledger={**drawn.ledger, **patient, **(ledger or {})},
        session_timeout_ms=1_000,
    )
    return dataclasses.replace(options, **replaced)


class SceneWorld:
    def __init__(self, world: World, options: Options, watch: Watch) -> None:
        self.world = world
        self.watch = watch
        self.cluster = Cluster(world, options, watch)
        self.workload = Workload(self.cluster, watch)

    async def start(self) -> None:
        """Returns when every node has started, and the clients know of all bookies."""
        await self.cluster.start()
        for number in range(2):
            client = self.ledger_client(number)
            await self.until(partial(_knows_all, client), f"client-{number} does not find the bookies")

    def expect(self, holds: bool, invariant: str, what: str) -> None:
        if not holds:
            self.watch.violated(invariant, what)

    async def until(self, condition: Callable[[], bool], what: str, *, step_s: float = 0.001) -> None:
        """Looked at after every `step_s`."""
        end = self.world.loop.now + WAIT_S
        while not condition():
            assert self.world.loop.now < end, what
            await asyncio.sleep(step_s)

    # --- nodes and clients --------------------------------------------------------------------------------------------

    def node(self, number: int) -> BookieNode:
        return self.cluster.bookies[f"bookie-{number}"]

    def bookie(self, number: int) -> Bookie:
        found = self.node(number).bookie
        assert found is not None, f"bookie-{number} does not serve"
        return found

    def seen(self, number: int) -> BookieWatch:
        return self.node(number).watch

    def client(self, number: int) -> ClientNode:
        node = self.cluster.clients[f"client-{number}"]
        assert isinstance(node, ClientNode)
        return node

    async def restart(self, number: int) -> None:
        """Power loss: what was not synced is lost. Returns when it serves again."""
        node = self.node(number)
        self.cluster.crash(node.name, Crash.DROP_UNSYNCED, restart_s=0.01)
        await self.until(lambda: node.bookie is not None, f"{node.name} does not come back")

    # --- what a client does -------------------------------------------------------------------------------------------

    def begin(self, client: int, work: Coroutine[Any, Any, T]) -> asyncio.Task[T]:
        """As a task of the client's process."""
        process = self.world.process(self.client(client).name)
        assert process is not None
        return self.world.loop.create_task(work, context=process.context.copy())

    async def do(self, client: int, work: Coroutine[Any, Any, T]) -> T:
        async with asyncio.timeout(WAIT_S):
            return await self.begin(client, work)

    def ledger_client(self, client: int) -> LedgerClient:
        found = self.client(client).client
        assert found is not None, f"client-{client} does not run"
        return found

    async def new_ledger(self) -> int:
        """With an empty password. Its writer ends at once: the scene itself adds to it."""

        async def create() -> int:
            writer = await self.ledger_client(0).create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            await writer.release()
            return int(writer.ledger_id)

        return await self.do(0, create())

    async def ask(self, client: int, number: int, request: AnyRequest, tries: int = _TRIES_MAX) -> Code:
        for tries_left in reversed(range(tries)):
            try:
                channel = await self.ledger_client(client).bookies.channel(BookieId(f"bookie-{number}:{PORT}"))
                return (await channel.request(request, timeout_s=WAIT_S / 2)).code
            except BookieUnavailableError:  # The client does not know yet that the machine lost its power.
                if not tries_left:
                    raise
                await asyncio.sleep(0.05)
        raise AssertionError("the last try returns or raises")

    async def fence(self, number: int, ledger_id: int, *, client: int = 0) -> Code:
        request = ReadEntry(ledger_id, LAST_ENTRY, fence=True, master_key=_KEY, version=V3)
        return await self.do(client, self.ask(client, number, request, tries=1))

    async def read(self, number: int, ledger_id: int, entry_id: int) -> Code:
        return await self.do(0, self.ask(0, number, ReadEntry(ledger_id, entry_id, version=V3)))

    async def add(self, number: int, ledger_id: int, entry_id: int = 0, *, payload: bytes = b"payload") -> Code:
        body = _DIGEST.seal(ledger_id, entry_id, entry_id - 1, (entry_id + 1) * len(payload), payload) + payload
        return await self.do(0, self.ask(0, number, AddEntry(ledger_id, entry_id, _KEY, body, version=V3)))


def _knows_all(client: LedgerClient) -> bool:
    return len(client.bookies.candidates().writable) == 3


# --- fences -----------------------------------------------------------------------------------------------------------

OTHER_LEDGERS = 8  # More than the table in memory may hold in the scene of the eviction.
_STALL_S = 20.0


async def power_loss_behind_a_fence(scene: SceneWorld) -> None:
    """16: the fence is answered, the power goes, the old writer comes back."""
    ledger_id = await scene.new_ledger()
    await scene.fence(0, ledger_id)
    await scene.restart(0)
    await _old_writer_is_refused(scene, ledger_id, "after a power loss")


async def second_fence_while_the_first_is_written(scene: SceneWorld) -> None:
    """18: two clients fence at the same time, and the power goes when the second has its answer."""
    ledger_id = await scene.new_ledger()
    device = scene.seen(0).image.journals[0]
    device.faults.stall_s = _STALL_S
    device.faults.strike_next(Fault.STALL)
    first = asyncio.ensure_future(scene.fence(0, ledger_id, client=0))
    await scene.until(lambda: scene.bookie(0).fencing.fenced == 1, "the first fence does not arrive")
    second = asyncio.ensure_future(scene.fence(0, ledger_id, client=1))
    answered, _ = await asyncio.wait([first, second], timeout=_STALL_S / 4, return_when=asyncio.FIRST_COMPLETED)
    await scene.restart(0)
    for fence in (first, second):
        fence.cancel()
    await asyncio.gather(first, second, return_exceptions=True)
    if answered:
        await _old_writer_is_refused(scene, ledger_id, "after a power loss while its fence was written")


async def eviction_of_a_fenced_ledger(scene: SceneWorld) -> None:
    """19: the ledger leaves the table in memory, and is loaded again for its old writer."""
    ledger_id = await scene.new_ledger()
    await scene.fence(0, ledger_id)
    for _ in range(OTHER_LEDGERS):
        await scene.add(0, await scene.new_ledger())
    table = scene.bookie(0).table
    assert table.find(ledger_id) is None, "the fenced ledger is to be evicted"
    await _old_writer_is_refused(scene, ledger_id, "after it left the table in memory")


async def deletion_of_a_fenced_ledger(scene: SceneWorld) -> None:
    """20: the ledger is deleted and collected; its old writer was away and knows nothing of it."""
    ledger_id = await scene.new_ledger()
    await scene.add(0, ledger_id)
    await scene.fence(0, ledger_id)
    await scene.do(0, scene.ledger_client(0).delete(ledger_id))
    garbage = scene.bookie(0).collector.garbage
    await scene.until(lambda: garbage.statistics.deleted > 0, "the deleted ledger is not collected")
    await _old_writer_is_refused(scene, ledger_id, "after its deletion", entry_id=1)


async def _old_writer_is_refused(scene: SceneWorld, ledger_id: int, when: str, *, entry_id: int = 0) -> None:
    code = await scene.add(0, ledger_id, entry_id)
    scene.expect(
        code is Code.EFENCED, "L8", f"bookie-0 answers a plain add with {code.name} {when}, though it had fenced"
    )


# --- recovery reads ---------------------------------------------------------------------------------------------------

_A, _B, _C = 0, 1, 2  # Bookies of the ledger's ensemble; which of them sits where does not matter with E = Qw.
_WRITER, _SUCCESSOR = 0, 1


async def bookie_that_was_not_fenced_says_no(scene: SceneWorld) -> None:
    """17: entry 1 is on A alone; B and C are out of the writer's reach. The successor's fence reaches A and B, and its
    reads reach B and C. Both say no, and the ledger is closed before the entry; then the writer's add reaches C."""
    network = scene.world.network
    writer, acks = await _written_by_all(scene)
    ledger_id = acks.ledger.ledger_id
    for number in (_B, _C):
        network.block(f"client-{_WRITER}", f"bookie-{number}")
    await scene.do(_WRITER, _add(scene, writer, acks))
    await scene.until(lambda: 1 in scene.seen(_A).promised[ledger_id], "entry 1 does not reach A")

    network.block(f"client-{_SUCCESSOR}", f"bookie-{_C}")
    is_fenced = asyncio.Event()
    recovery = scene.begin(_SUCCESSOR, _recover(scene, acks, is_fenced))
    await scene.until(lambda: scene.bookie(_A).fencing.fenced > 0, "no fence reaches A", step_s=0.000_02)
    network.block(f"client-{_SUCCESSOR}", f"bookie-{_A}")
    async with asyncio.timeout(WAIT_S):
        await is_fenced.wait()
        network.reset(f"client-{_SUCCESSOR}", f"bookie-{_C}")
        network.heal(f"bookie-{_C}")
        network.block(f"client-{_WRITER}", f"bookie-{_C}")
        await recovery

    network.heal(f"bookie-{_C}")
    await scene.until(lambda: bool(acks.pending == 0 or acks.failure), "the writer hears nothing from C")
    stored = scene.seen(_C).promised.get(ledger_id, {})
    scene.expect(1 not in stored, "L9", "bookie-2 denied entry 1 to a recovery, and stored it for the writer")


async def _written_by_all(scene: SceneWorld) -> tuple[LedgerWriter, Acks]:
    """A ledger whose entry 0 all bookies have."""
    created = await scene.do(_WRITER, scene.workload.create(scene.client(_WRITER)))
    assert created is not None
    writer, acks = created
    ledger_id = writer.ledger_id
    await scene.do(_WRITER, _add(scene, writer, acks))
    holders = [scene.seen(number).promised for number in (_A, _B, _C)]
    await scene.until(lambda: all(0 in promised.get(ledger_id, ()) for promised in holders), "entry 0 is not stored")
    await scene.until(lambda: not acks.pending, "entry 0 is not acknowledged")
    return writer, acks


async def _add(scene: SceneWorld, writer: LedgerWriter, acks: Acks) -> None:
    assert scene.workload.add(writer, acks)


async def _recover(scene: SceneWorld, acks: Acks, is_fenced: asyncio.Event) -> None:
    def on_progress(_: RecoveryProgress) -> None:
        is_fenced.set()

    ledger = acks.ledger
    client = scene.ledger_client(_SUCCESSOR)
    await client.recover(ledger.ledger_id, password=ledger.password, on_progress=on_progress)


# --- a bookie's disks -------------------------------------------------------------------------------------------------

_STARTS = 3  # Number of starts: a bookie that refuses once and serves then is no better.


async def empty_disks(scene: SceneWorld) -> None:
    """21: everything is emptied while the machine is off, and the bookie comes back under its name."""
    ledger_id = await scene.new_ledger()
    await scene.add(0, ledger_id)
    node, seen = scene.node(0), scene.seen(0)
    starts = node.starts
    scene.cluster.crash(node.name, Crash.POWER_LOSS, restart_s=0.01)
    config = node.config.bookie
    for path in (*config.journal_dirs.split(","), *config.ledger_dirs.split(",")):
        seen.machine.empty(path)
    seen.emptied = True
    seen.image.forget()
    await scene.until(lambda: node.bookie is not None or node.starts > starts + _STARTS, "it is not started again")
    if node.bookie is None:
        return
    code = await scene.read(0, ledger_id, 0)
    scene.expect(False, "B7", f"bookie-0 lost its disks, and answers {code.name} for an entry that it had stored")


async def killed_in_a_stop(scene: SceneWorld) -> None:
    """80: the closing group is written and not synced when the process is killed; the next life reads it."""
    ledger_id = await scene.new_ledger()
    await scene.add(0, ledger_id)
    node = scene.node(0)
    node.stopping.set()
    await scene.until(lambda: is_being_closed(node), "it does not close its journal", step_s=0.000_02)
    scene.cluster.crash(node.name, Crash.KILL, restart_s=0.01)
    await scene.until(lambda: node.bookie is not None, "it does not come back")
    await scene.add(0, ledger_id, 1)
    await scene.restart(0)


# --- the cost of a start ----------------------------------------------------------------------------------------------

_MARKS: Final = (b"MNJG", b"MNJG", b"MNJG", ENTRIES.to_bytes(4, "little"))
_ENTRIES_MAX: Final = 500
_PAYLOAD_BYTES: Final = 20_000
_LINES: Final = 60_000  # A start without data costs this, with three nodes' heartbeats meanwhile.
_LINES_PER_BYTE: Final = 0.02
_READS_PER_BYTE: Final = 10
_SMALL_FILES: Final[dict[str, Any]] = {
    "journals": 1,
    "ledger_dirs": 1,
    "storage": {"flush_interval_ms": 20},
    "journal": {
        "file_bytes_max": 65_536,
        "group_bytes_max": 32_768,
        "preallocated_bytes": 0,
        "spare_files_max": 4,
    },
}


async def chosen_payloads(scene: SceneWorld) -> None:
    """81: files that are used again are full of what looks like the beginning of a group."""
    ledger_id = await scene.new_ledger()
    (journal,) = scene.seen(0).image.journals
    for entry_id in range(_ENTRIES_MAX):
        mark = _MARKS[entry_id % len(_MARKS)]
        code = await scene.add(0, ledger_id, entry_id, payload=mark * (_PAYLOAD_BYTES // len(mark)))
        assert code is Code.EOK, code
        if any(_is_used_again(image) for image in journal.tree.files()):
            break
    else:
        raise AssertionError("no file is used again")
    await _start_within_budget(scene)


def _is_used_again(image: FileImage) -> bool:
    if not image.path.endswith(".journal"):
        return False
    header = decode_file_header(bytes(image.cache[:FILE_HEADER_BYTES]), image.path)
    return header is not None and header.is_reused


async def many_groups(scene: SceneWorld) -> None:
    """82: a file of many small groups is read in large pieces, and each piece once."""
    ledger_id = await scene.new_ledger()
    for entry_id in range(300):
        code = await scene.add(0, ledger_id, entry_id)
        assert code is Code.EOK, code
    await _start_within_budget(scene)


async def _start_within_budget(scene: SceneWorld) -> None:
    node, devices = scene.node(0), scene.seen(0).image.devices
    scene.cluster.crash(node.name, Crash.KILL, restart_s=0.01)
    size = sum(len(image.cache) for device in devices for image in device.tree.files())
    before = sum(device.bytes_read for device in devices)
    with measured() as effort:
        await scene.until(lambda: node.bookie is not None, "it does not come back")
    read = sum(device.bytes_read for device in devices) - before
    if effort.lines > _LINES + _LINES_PER_BYTE * size:
        scene.watch.violated("V8", f"a start over {size:,} bytes ran {effort.lines:,} lines")
    if read > _READS_PER_BYTE * size:
        scene.watch.violated("V8", f"a start over {size:,} bytes read {read:,} bytes")
    scene.watch.note(f"a start over {size:,} bytes ran {effort.lines:,} lines and read {read:,} bytes")


# --- long lives -------------------------------------------------------------------------------------------------------

_HOUR_MS: Final = 3_600_000
_DAY_S: Final = 86_400
_JUMP_MS: Final = 30 * _DAY_S * 1000.0
_HOURLY: Final[dict[str, Any]] = {
    "storage": {"gc_interval_ms": _HOUR_MS, "flush_interval_ms": _HOUR_MS},
    "bookie": {"disk_check_interval_ms": _HOUR_MS},
    "ledger": {"explicit_lac_interval_ms": 0},
}


async def fence_of_a_deleted_ledger_over_days(scene: SceneWorld) -> None:
    ledger_id = await scene.new_ledger()
    await scene.add(0, ledger_id)
    await scene.fence(0, ledger_id)
    await scene.do(0, scene.ledger_client(0).delete(ledger_id))
    await asyncio.sleep(2 * _DAY_S)
    _expect_rounds(scene, days=2)
    _expect_tombstones(scene, 1, "after two days")
    clock = scene.seen(0).machine.clock
    clock.jump(_JUMP_MS)
    await asyncio.sleep(_DAY_S)
    clock.jump(-_JUMP_MS)
    await _expect_fenced(scene, ledger_id, "after three days, in one of which its clock was ahead")
    await scene.restart(0)
    await asyncio.sleep(3 * _DAY_S)
    await _expect_fenced(scene, ledger_id, "after six days and a restart")
    await asyncio.sleep(2 * _DAY_S)
    _expect_rounds(scene, days=5)
    _expect_tombstones(scene, 0, "after eight days")


async def _expect_fenced(scene: SceneWorld, ledger_id: int, when: str) -> None:
    code = await scene.add(0, ledger_id, 1)
    scene.expect(code is Code.EFENCED, "L8", f"bookie-0 answers an add to a deleted, fenced ledger {code.name} {when}")


def _expect_tombstones(scene: SceneWorld, count: int, when: str) -> None:
    found = scene.bookie(0)._storage.tombstones.count
    scene.expect(found == count, "V7", f"bookie-0 remembers {found} deleted ledgers {when}, not {count}")


def _expect_rounds(scene: SceneWorld, days: int) -> None:
    """Of garbage collection, since the process began."""
    rounds = scene.bookie(0).collector.garbage.statistics.rounds
    scene.expect(rounds >= 23 * days, "V7", f"bookie-0 had {rounds} rounds of garbage collection in {days} days")


# --- a world of bundles -----------------------------------------------------------------------------------------------


_ONE_BUNDLE: Final[dict[str, Any]] = {
    "faults": (),
    "brokers": 2,
    "topics": 1,
    "bundles": 1,
    "balances": False,
    "topic_policies": False,
    "session_expired_policy": "reconnect",
    "command_gap_s": 1_000.0,
    "weights": (1,),
}


async def late_unload(cluster: BundleCluster, workload: BundleWorkload, watch: BundleWatch) -> None:
    """33: topics of a bundle that is unloaded take long to close. Meanwhile the session ends, and another broker owns
    the bundle. The unload must not end that."""
    workload.begin()
    (topic,) = workload.topics
    await cluster.wait_healed(lambda: watch.owner_of(topic.name) is not None, "V2", "no broker takes the bundle")
    first = watch.owner_of(topic.name)
    assert first is not None
    old, new = cluster.bundle_brokers[first.owner], _other(cluster, first.owner)
    assert old.ownership is not None
    closing, may_close = asyncio.Event(), asyncio.Event()

    async def close() -> None:
        closing.set()
        await may_close.wait()

    old.ownership.listen(lambda _topics, _successor: close())
    unload = cluster.spawn(old, old.ownership.unload(first.bundle), "the late unload")
    await closing.wait()
    cluster.expire(old.name)
    await cluster.wait_healed(lambda: watch.owner_of(topic.name) is not first, "V2", "the session does not end")
    workload.take_soon(new, topic)
    await cluster.wait_healed(lambda: _is_by(watch, topic.name, new), "V2", f"{new} does not take the bundle")
    may_close.set()
    await asyncio.wait([unload])
    if not _is_by(watch, topic.name, new):
        watch.violated("T3", f"the unload of {first} has ended the next ownership, by {new}")


def _other(cluster: BundleCluster, name: str) -> str:
    return next(each for each in cluster.bundle_brokers if each != name)


def _is_by(watch: BundleWatch, topic: str, broker: str) -> bool:
    generation = watch.owner_of(topic)
    return generation is not None and generation.owner == broker


# --- the scenes by number ---------------------------------------------------------------------------------------------


class Directed(NamedTuple):
    scene: Scene | None
    """None: the script of a world of bundles."""
    caught_by: str
    options: dict[str, Any] = {}  # noqa: RUF012 - it is never changed
    seeds: int = 5
    """How many of them `make test` plays: fewer where a seed changes little and costs much."""
    script: Script | None = None
    """In a world of bundles, it takes the place of what happens there; the world settles as any other one."""


SCENES: Final = {
    16: Directed(power_loss_behind_a_fence, "L8"),
    17: Directed(bookie_that_was_not_fenced_says_no, "L9"),
    18: Directed(second_fence_while_the_first_is_written, "L8"),
    19: Directed(eviction_of_a_fenced_ledger, "L8", {"ledgers_in_memory": 3}),
    20: Directed(deletion_of_a_fenced_ledger, "L8", {"storage": {"gc_interval_ms": 50}}),
    21: Directed(empty_disks, "B7"),
    80: Directed(killed_in_a_stop, "B9"),
    81: Directed(chosen_payloads, "V8", _SMALL_FILES, seeds=1),
    83: Directed(fence_of_a_deleted_ledger_over_days, "L8", _HOURLY, seeds=1),
    84: Directed(fence_of_a_deleted_ledger_over_days, "V7", _HOURLY, seeds=1),
    85: Directed(fence_of_a_deleted_ledger_over_days, "L8", _HOURLY, seeds=1),
    82: Directed(many_groups, "V8", {"journals": 1, "journal": {"group_bytes_max": 1}}, seeds=2),
    33: Directed(None, "T3", _ONE_BUNDLE, seeds=2, script=late_unload),
}


def run_scene(number: int, seed: int, *, planted: bool, trace: Callable[[str], None] | None = None) -> Report:
    directed = SCENES[number]
    mutant = MUTANTS[number].plant if planted else None
    if directed.scene is None:
        return BUNDLES.run(seed, directed.options, mutant=mutant, trace=trace, script=directed.script)
    play, options = directed.scene, scene_options(seed, **directed.options)

    async def life(world: World, watch: Watch) -> None:
        scene = SceneWorld(world, options, watch)
        await scene.start()
        await play(scene)

    return live(
        Report(seed, options.summary()),
        lambda: World(f"{number}/{seed}", shuffle=options.shuffle, delay=options.delay, trace=trace),
        lambda world: Watch(world, options, ALL),
        life,
        mutant=mutant,
    )
