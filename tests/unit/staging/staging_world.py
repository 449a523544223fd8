"""A broker on one bookie, tasks that stage and drivers that commit, and a store whose answers can be lost.

async with staging_world() as world:
    staged = await world.stage(epoch=0, partition=0, rows={TOPIC: ["a", "b"]})
    await world.sink().commit(OWNER, 0, [staged])
    assert await world.texts(TOPIC) == ["a", "b"]
"""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from typing import Any

from magnetar.broker.staged.publishing import BrokerPublisher
from magnetar.errors import OutcomeUnknownError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import (
    ANY_VERSION,
    CreateMode,
    MetadataStore,
    Node,
    Operation,
    OperationResult,
    Request,
    Watcher,
)
from magnetar.staging.publisher import Reached, nothing_reached
from magnetar.staging.records import Staged
from magnetar.staging.register import StagingSettings
from magnetar.staging.sink import Sink
from magnetar.staging.stager import Stager
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.unit.broker.pulsar.broker_world import BrokerWorld, broker_world

OWNER = "spark/5f0c-query"
TOPIC = "persistent://public/default/out"
OTHER = "persistent://public/default/other"


def entry(text: str, sequence_id: int, owner: str = OWNER) -> bytes:
    metadata = MessageMetadata(producer_name=owner, sequence_id=sequence_id, publish_time=1)
    return with_checksum(metadata.SerializeToString(), text.encode())


class FaultyStore(MetadataStore):
    """The same store, with a hook before and a loss after chosen operations."""

    def __init__(self, store: MetadataStore) -> None:
        self._store = store
        self.session = store.session
        self.lost: list[str] = []
        """Names of operations whose next answer is lost, though they are done."""
        self.before: dict[str, Callable[[], Any]] = {}
        """Operation → what happens right before it, once; awaited."""

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        return self._store._submit(request)

    async def _done(self, name: str, work: Callable[[], Any]) -> Any:
        hook = self.before.pop(name, None)
        if hook is not None:
            await hook()
        result = await work()
        if name in self.lost:
            self.lost.remove(name)
            raise OutcomeUnknownError(f"the answer to {name} was lost")
        return result

    async def get(self, path: str, *, watch: Watcher | None = None, expects_nothing: bool = False) -> Node | None:
        read = functools.partial(self._store.get, path, watch=watch, expects_nothing=expects_nothing)
        found: Node | None = await self._done("get", read)
        return found

    async def children(self, path: str, *, watch: Watcher | None = None) -> list[str]:
        found: list[str] = await self._done("children", lambda: self._store.children(path, watch=watch))
        return found

    async def create(
        self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
    ) -> str:
        made: str = await self._done(
            "create", lambda: self._store.create(path, value, mode=mode, make_parents=make_parents)
        )
        return made

    async def put(self, path: str, value: bytes, version: int = ANY_VERSION) -> int:
        made: int = await self._done("put", lambda: self._store.put(path, value, version))
        return made

    async def delete(self, path: str, version: int = ANY_VERSION) -> None:
        await self._done("delete", lambda: self._store.delete(path, version))

    async def transact(self, operations: Sequence[Operation]) -> list[OperationResult]:
        made: list[OperationResult] = await self._done("transact", lambda: self._store.transact(operations))
        return made

    async def sync(self) -> None:
        await self._done("sync", self._store.sync)

    async def aclose(self) -> None:
        """It is the world's."""


class StagingWorld:
    def __init__(self, broker: BrokerWorld, ledgers: LedgerClient) -> None:
        self.broker_world = broker
        self.ledgers = ledgers
        self.store = FaultyStore(broker.cluster.store)
        """The driver's."""
        self.settings = StagingSettings()

    @property
    def publisher(self) -> BrokerPublisher:
        broker = self.broker_world.broker
        return BrokerPublisher(broker.service, broker.staged)

    def sink(self, publisher: Any = None, *, reached: Reached = nothing_reached, patience_s: float = 5.0) -> Sink:
        return Sink(
            self.store, self.ledgers, publisher or self.publisher, self.settings, patience_s=patience_s, reached=reached
        )

    def stager(self, epoch: int = 0, partition: int = 0, attempt: int = 0, owner: str = OWNER) -> Stager:
        return Stager(self.ledgers, self.settings, owner, epoch, partition, attempt, task_attempt_id=1)

    async def stage(
        self,
        rows: Mapping[str, Sequence[str]],
        *,
        epoch: int = 0,
        partition: int = 0,
        attempt: int = 0,
        owner: str = OWNER,
    ) -> Staged:
        stager = self.stager(epoch, partition, attempt, owner)
        for topic, texts in rows.items():
            for number, text in enumerate(texts):
                await stager.add(topic, entry(text, (epoch << 32) + (partition << 20) + number, owner), 1)
        return await stager.finish()

    async def texts(self, topic: str = TOPIC) -> list[str]:
        log = (await self.broker_world.topic(topic)).log
        position = log.chain.first_position
        found: list[str] = []
        while position <= log.last_confirmed:
            entries = await log.read(position, 100, 2**20)
            found += [bytes(memoryview(each.data)[each.head.payload_offset :]).decode() for each in entries]
            position = log.chain.next_position(entries[-1].position)
        return found

    async def ledger_exists(self, ledger_id: int) -> bool:
        return any([found == ledger_id async for found in self.ledgers.list()])


@contextlib.asynccontextmanager
async def staging_world(**sections: Any) -> AsyncIterator[StagingWorld]:
    async with broker_world(**sections) as broker:
        cluster = broker.cluster
        async with LedgerClient(cluster.store, broker.config, cluster.runtime, local=cluster.local) as ledgers:
            yield StagingWorld(broker, ledgers)
