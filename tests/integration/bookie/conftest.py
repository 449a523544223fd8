"""A whole bookie in this process, on a real socket and a real disk, with metadata in memory."""

from __future__ import annotations

import asyncio
import dataclasses
import itertools
from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from magnetar.bookie.bookie import Bookie
from magnetar.config.bookie import BookieConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import StorageConfig
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.servers import HOST
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.ends import decode_response, encode_request
from magnetar.wire.bookkeeper.messages import AnyRequest, AnyResponse

KEY = master_key(b"secret")
DIGEST = entry_digest(DigestType.CRC32C)
_txn_ids = itertools.count(1)


def entry(ledger_id: int, entry_id: int, payload: bytes = b"payload", *, lac: int | None = None) -> bytes:
    """As it is stored and read back."""
    return DIGEST.seal(ledger_id, entry_id, entry_id - 1 if lac is None else lac, 100, payload) + payload


class Client:
    """One connection; one request at a time, in whichever version the request says."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._reader = reader
        self._writer = writer

    async def ask(self, request: AnyRequest, *, seconds: float = 10.0) -> AnyResponse:
        asked = dataclasses.replace(request, txn_id=next(_txn_ids)) if request.version == 3 else request
        self._writer.write(encode_request(asked))
        async with asyncio.timeout(seconds):
            head = await self._reader.readexactly(4)
            frame = head + await self._reader.readexactly(int.from_bytes(head, "big"))
        decoded = decode_response(frame, 0, len(frame), request.version)
        assert decoded is not None
        assert decoded.response.txn_id == asked.txn_id
        return decoded.response

    async def aclose(self) -> None:
        self._writer.close()
        await self._writer.wait_closed()


class Node:
    """The bookie and its clients; `restart` closes and opens it on the same directory."""

    def __init__(self, directory: Path, store: MetadataStore) -> None:
        self._directory = directory
        self._port = free_port(HOST)  # One that no client gets while the bookie is started again.
        self._store = store
        self._clients: list[Client] = []
        self.bookie: Bookie | None = None

    async def start(self) -> None:
        self.bookie = await self.open_with(BookieConfig(dir=str(self._directory), port=self._port))

    async def open_with(self, bookie: BookieConfig) -> Bookie:
        config = Config(
            metadata=MetadataConfig(url="memory:"),
            storage=StorageConfig(write_cache_bytes_max=64 * 1024),
            bookie=bookie,
        )
        return await Bookie.open(config, SystemRuntime(), self._store, Metrics(), base="/")

    async def client(self) -> Client:
        assert self.bookie is not None
        client = Client(*await asyncio.open_connection("127.0.0.1", self.bookie.port))
        self._clients.append(client)
        return client

    async def stop(self) -> None:
        clients, self._clients = self._clients, []
        for client in clients:
            await client.aclose()
        bookie, self.bookie = self.bookie, None
        if bookie is not None:
            await bookie.aclose()

    async def lives(self, client: Client) -> AsyncIterator[Client]:
        """The given client, and then one of the restarted bookie."""
        yield client
        yield await self.restart()

    async def restart(self) -> Client:
        await self.stop()
        await self.start()
        return await self.client()


@pytest_asyncio.fixture
async def node(tmp_path: Path) -> AsyncIterator[Node]:
    runtime = SystemRuntime()
    config = MetadataConfig(url="memory:")
    server = MemoryServer(runtime.entropy, config)
    store = server.connect()
    await init_cluster(store, BookKeeperPaths(config.ledgers_root), runtime.entropy)
    made = Node(tmp_path / "bookie", store)
    await made.start()
    yield made
    await made.stop()
    await server.aclose()


@pytest_asyncio.fixture
async def client(node: Node) -> Client:
    return await node.client()
