"""A cluster of real bookies in this process, and logs of topics on it.

async with log_world() as world:
    log, heard = await world.open()
    world.append(log, 5)
    await heard.until(5)
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable, Sequence
from typing import Any

from magnetar.config.ledger import LedgerConfig
from magnetar.config.topic import TopicConfig
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.testing.waiting import until
from magnetar.topic.log.log import TopicLog
from magnetar.topic.log.managed_ledger import LogContext
from magnetar.topic.log.tail_cache import TailCache
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, Position
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from tests.clusters import new_cluster

TOPIC = "public/default/persistent/orders"
SINGLE = TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1)
PATIENT = LedgerConfig(reconnect_backoff_ms=1, reconnect_backoff_max_ms=20)
"""A busy machine is no failed bookie."""
IMPATIENT = LedgerConfig(
    reconnect_backoff_ms=1,
    reconnect_backoff_max_ms=20,
    add_timeout_ms=300,
    add_quorum_timeout_ms=600,
    replacement_wait_ms=200,
)


def message(
    text: str, *, publish_ms: int = 1, batch: int = 0, key: str | None = None, payload: bytes | None = None
) -> bytes:
    """Returns what a producer sends after its command."""
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=publish_ms)
    if batch:
        metadata.num_messages_in_batch = batch
    if key is not None:
        metadata.partition_key = key
    return with_checksum(metadata.SerializeToString(), text.encode() if payload is None else payload)


def text_of(entry: LogEntry) -> str:
    return bytes(memoryview(entry.data)[entry.head.payload_offset :]).decode()


class Heard:
    """What a log reports to its publisher."""

    def __init__(self) -> None:
        self.appended: list[tuple[Position, Any]] = []
        self.failed: list[Any] = []
        self.error: MagnetarError | None = None
        self.fenced: MagnetarError | None = None
        self.rooms = 0

    def on_appended(self, first: Position, tokens: Sequence[Any]) -> None:
        for number, token in enumerate(tokens):
            self.appended.append((Position(first.ledger_id, first.entry_id + number), token))

    def on_append_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        self.failed += tokens
        self.error = error

    def on_room(self) -> None:
        self.rooms += 1

    def on_fenced(self, error: MagnetarError) -> None:
        self.fenced = error

    @property
    def tokens(self) -> list[Any]:
        return [token for _, token in self.appended]

    @property
    def positions(self) -> list[Position]:
        return [position for position, _ in self.appended]

    async def until(self, appended: int) -> None:
        await until(lambda: len(self.appended) >= appended, f"{appended} entries to be acknowledged")

    async def until_fenced(self) -> None:
        await until(lambda: self.fenced is not None, "the log to be fenced")


class LogWorld:
    def __init__(self, cluster: BookieCluster, client: LedgerClient, config: TopicConfig) -> None:
        self.cluster = cluster
        self.client = client
        self.config = config
        self.context = LogContext(
            client, cluster.store, cluster.runtime.entropy, TailCache(config.tail_cache_bytes_max)
        )
        self._logs: list[TopicLog] = []

    async def open(self, name: str = TOPIC, *, create: bool = True, **settings: Any) -> tuple[TopicLog, Heard]:
        heard = Heard()
        config = dataclasses.replace(self.config, **settings)
        log = await TopicLog.open(name, self.context, config, heard, create=create)
        self._logs.append(log)
        return log, heard

    def append(self, log: TopicLog, count: int, *, first: int = 0, batch: int = 0) -> None:
        for number in range(first, first + count):
            log.append(message(f"m{number}", batch=batch), batch or 1, number)

    async def written(self, log: TopicLog, heard: Heard, count: int, **choices: Any) -> None:
        """Appends, and waits until all of it is acknowledged."""
        wanted = len(heard.appended) + count
        self.append(log, count, first=choices.pop("first", len(heard.appended)), **choices)
        await heard.until(wanted)

    async def ledgers(self) -> list[int]:
        return [ledger async for ledger in self.client.list()]

    async def aclose(self) -> None:
        for log in self._logs:
            await log.aclose()


async def read_all(log: TopicLog, first: Position = EARLIEST, entries_max: int = 7) -> list[LogEntry]:
    found: list[LogEntry] = []
    while entries := await log.read(first, entries_max, 2**20):
        found += entries
        first = log.chain.next_position(found[-1].position)
    return found


def drop_tail(log: TopicLog) -> None:
    """So that reads go to bookies."""
    log._tail.clear()


@contextlib.asynccontextmanager
async def log_world(
    bookies: int = 1,
    *,
    config: TopicConfig = SINGLE,
    ledger: LedgerConfig = PATIENT,
    wall_ms: Callable[[], int] | None = None,
) -> AsyncIterator[LogWorld]:
    cluster = new_cluster(bookies, config=small_config(ledger=ledger))
    runtime = cluster.runtime
    if wall_ms is not None:
        runtime.entropy.wall_ms = wall_ms  # type: ignore[method-assign]
    async with cluster, LedgerClient(cluster.store, cluster.config, runtime, local=cluster.local) as client:
        world = LogWorld(cluster, client, config)
        try:
            yield world
        finally:
            await world.aclose()
