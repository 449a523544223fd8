"""The cluster of one seed: that of topics, and on it drivers, executors and sweepers, each a process with a client.

- points: at a named step of the protocol, the process that reached it is killed, or stands still for a while.
- asking: a broker is asked to publish over the simulated network, by one line, and answers with one: `publish <topic>
  <epoch> <owner>`, `forget <topic> <owner>` or `skip <owner> <epoch>`; `ok`, `again <why>` (worth asking again),
  `refused <why>`, or `elsewhere <broker>`. The broker does what admin/topics/staging.py has it do: it looks the topic
  up, and calls the same function.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Coroutine, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any, ClassVar, Final, TypeAlias
from urllib.parse import urlsplit

from magnetar.broker.broker import Broker
from magnetar.broker.front_end import PULSAR
from magnetar.errors import BrokerUnavailableError, EpochOrderError, MagnetarError, ServiceNotReadyError
from magnetar.ledger.client import LedgerClient
from magnetar.names import TopicName
from magnetar.sim.device import Crash
from magnetar.sim.ledgers.cluster import ClientNode
from magnetar.sim.process import Process
from magnetar.sim.seeds import seeded
from magnetar.sim.staging.options import StagingOptions
from magnetar.sim.staging.watch import StagingWatch
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.world import World
from magnetar.staging.publisher import Reached

# --- asking a broker to publish ---------------------------------------------------------------------------------------


PORT: Final = 6651
_WAIT_S: Final = 0.5
_ANSWER_S: Final = 2.0
_HOPS_MAX: Final = 4


@asynccontextmanager
async def answering(broker: Broker) -> AsyncIterator[None]:
    serving: dict[asyncio.Task[None], asyncio.StreamWriter] = {}

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        serving[task] = writer
        task.add_done_callback(serving.pop)
        with suppress(OSError, asyncio.IncompleteReadError):
            line = (await reader.readuntil()).decode().split()
            writer.write((await _answer(broker, line) + "\n").encode())
            await writer.drain()
        writer.close()

    server = await asyncio.start_server(serve, "0.0.0.0", PORT)  # noqa: S104
    try:
        yield
    finally:
        server.close()
        await asyncio.sleep(0)  # The last connection's task begins.
        for writer in serving.values():
            writer.transport.abort()  # A client may have connected, and not asked yet.
        if serving:
            await asyncio.wait(list(serving))


async def _answer(broker: Broker, line: Sequence[str]) -> str:
    try:
        if line[0] == "skip":
            broker.staged.note_skip(line[1], int(line[2]))
            return "ok"
        name = TopicName.parse(line[1])
        found = await broker.service.look_up(name)
        if not found.is_here:
            return f"elsewhere {urlsplit(found.address.url_for(PULSAR)).hostname}"
        if line[0] == "publish":
            await broker.staged.publish(name, line[3], int(line[2]), wait_s=_WAIT_S)
        else:
            await broker.staged.forget(name, line[2])
    except MagnetarError as error:
        kind = "again" if error.retryable or error.outcome_unknown else "refused"
        return f"{kind} {type(error).__name__}: {error}".replace("\n", " ")
    return "ok"


class AskingPublisher:
    """A `Publisher` of the simulated world."""

    def __init__(self, brokers: Sequence[str], random: Random) -> None:
        self._brokers = brokers
        self._random = random

    async def publish(self, topic: str, owner: str, epoch: int) -> None:
        await self._ask(f"publish {topic} {epoch} {owner}\n")

    async def forget(self, topic: str, owner: str) -> None:
        await self._ask(f"forget {topic} {owner}\n")

    async def note_skip(self, owner: str, epoch: int) -> None:
        await self._ask(f"skip {owner} {epoch}\n")

    async def _ask(self, line: str) -> None:
        broker = self._random.choice(self._brokers)
        for _ in range(_HOPS_MAX):
            kind, _, rest = (await self._exchange(broker, line)).partition(" ")
            if kind == "ok":
                return
            if kind == "refused":
                raise EpochOrderError(rest)
            if kind == "again":
                raise ServiceNotReadyError(rest)
            broker = rest
        raise ServiceNotReadyError("sent from one broker to the next")

    async def _exchange(self, broker: str, line: str) -> str:
        writer: asyncio.StreamWriter | None = None
        try:
            async with asyncio.timeout(_ANSWER_S):
                reader, writer = await asyncio.open_connection(broker, PORT)
                writer.write(line.encode())
                answer = await reader.readline()
        except (OSError, TimeoutError) as error:
            raise BrokerUnavailableError(f"{broker} does not answer: {error!r}") from None
        finally:
            if writer is not None:
                writer.close()
        if not answer.endswith(b"\n"):
            raise BrokerUnavailableError(f"{broker} has hung up")
        return answer.decode().strip()


# --- nodes and the cluster --------------------------------------------------------------------------------------------


Run: TypeAlias = Callable[[LedgerClient], Coroutine[Any, Any, None]]

_OFTEN: Final = {"mid-append": 0.1, "mid-copy": 0.5}
"""Points that are passed again and again: struck less."""


@dataclass(slots=True, kw_only=True)
class WorkerNode(ClientNode):
    run: Run | None = None
    """None: it waits for tasks."""
    can_own: ClassVar[bool] = False

    async def live(self, client: LedgerClient) -> None:
        if self.run is None:
            await self.stopping.wait()
        else:
            await self.run(client)
            self.is_done = True


class StagingCluster(TopicCluster):
    watch: StagingWatch

    def __init__(self, world: World, options: StagingOptions, watch: StagingWatch) -> None:
        super().__init__(world, options.world, watch)
        self.staging_options = options
        self.workers: dict[str, WorkerNode] = {}
        strike = options.strike if "points" in options.faults else 0.0
        self.points = Points(self, seeded(f"{options.base.seed}/points"), strike, options.points)
        self.beside = self._answering

    @asynccontextmanager
    async def _answering(self, name: str, broker: Broker) -> AsyncIterator[None]:
        broker.staged.reached = self.points.of(name)
        async with answering(broker):
            yield

    def publisher(self, purpose: str) -> AskingPublisher:
        return AskingPublisher(list(self.brokers), seeded(f"{self.options.seed}/asking/{purpose}"))

    def add_worker(self, name: str, run: Run | None = None) -> WorkerNode:
        node = self.workers[name] = WorkerNode(name, self.options.client_config(), metadata=self.metadata, run=run)
        self.add_node(node)
        return node

    def running_workers(self, prefix: str) -> list[WorkerNode]:
        return [node for name, node in self.workers.items() if name.startswith(prefix) and node.is_running]


class Points:
    def __init__(self, cluster: StagingCluster, random: Random, strike: float, only: Sequence[str]) -> None:
        """`only` at these points; empty: at all of them."""
        self.is_over = False
        self._cluster = cluster
        self._random = random
        self._strike = strike
        self._only = only

    def of(self, node: str) -> Reached:
        return partial(self._pass, node)

    def _pass(self, node: str, point: str, epoch: int) -> None:
        watch = self._cluster.watch
        watch.counters[f"point {point}"] += 1
        if self.is_over or (self._only and point not in self._only):
            return
        if self._random.random() >= self._strike * _OFTEN.get(point, 1.0):
            return
        fate = self._random.choice(("killed", "killed", "paused"))
        watch.note(f"{node} is {fate} at {point} of epoch {epoch}")
        watch.struck(f"{fate} at {point}")
        loop = self._cluster.world.loop
        loop.call_soon(self._befall, node, self._cluster.world.process(node), fate, context=loop.root.context)

    def _befall(self, node: str, process: Process | None, fate: str) -> None:
        if process is None or self._cluster.world.process(node) is not process:
            return
        if fate == "killed":
            self._cluster.crash(node, Crash.KILL)
        else:
            self._cluster.pause(node, self._random.choice((0.05, 0.5, 2.0)) * self._random.random())
