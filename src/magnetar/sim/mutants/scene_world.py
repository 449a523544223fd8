"""The world of a scene: three bookies and two clients in a world without faults, watched like any other.

Settings:  as the seed draws them, except for what a scene counts on: no client is impatient, nothing is flushed or
           collected by itself, so that what happens is what the scene does.
Hands:     `fence`, `read` and `add` speak to one bookie, as a task of a client's process; they return the code.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Awaitable, Callable, Coroutine
from functools import partial
from typing import Any, Final, TypeVar

from magnetar.bookie.bookie import Bookie
from magnetar.errors import BookieUnavailableError
from magnetar.ids import BookieId
from magnetar.ledger.client import LedgerClient
from magnetar.sim.devices.device import Crash
from magnetar.sim.ledgers.cluster import BookieNode, ClientNode, Cluster
from magnetar.sim.ledgers.options import PORT, TIGHT_BOOKIE, Options, draw
from magnetar.sim.ledgers.watch import BookieWatch, Watch
from magnetar.sim.ledgers.workload import Workload
from magnetar.sim.world import World
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.frames import LAST_ENTRY
from magnetar.wire.bookkeeper.messages import V3, AddEntry, AnyRequest, ReadEntry

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
    """What the sections have goes on top of the settings of the bookies, `ledger` on top of the clients'."""
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

    # --- who is there -------------------------------------------------------------------------------------------------

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
        """Power loss; whatever was not synced is gone. Returns when it serves again."""
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

    async def new_ledger(self, client: int = 0) -> int:
        """With an empty password. Its writer ends at once: the scene itself adds to it."""

        async def create() -> int:
            writer = await self.ledger_client(client).create(ensemble_size=3, write_quorum=3, ack_quorum=2)
            await writer.release()
            return int(writer.ledger_id)

        return await self.do(client, create())

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

    async def read(self, number: int, ledger_id: int, entry_id: int, *, client: int = 0) -> Code:
        return await self.do(client, self.ask(client, number, ReadEntry(ledger_id, entry_id, version=V3)))

    async def add(
        self,
        number: int,
        ledger_id: int,
        entry_id: int = 0,
        *,
        client: int = 0,
        recovery: bool = False,
        payload: bytes = b"payload",
    ) -> Code:
        body = _DIGEST.seal(ledger_id, entry_id, entry_id - 1, (entry_id + 1) * len(payload), payload) + payload
        request = AddEntry(ledger_id, entry_id, _KEY, body, recovery=recovery, version=V3)
        return await self.do(client, self.ask(client, number, request))


def _knows_all(client: LedgerClient) -> bool:
    return len(client.bookies.candidates().writable) == 3
