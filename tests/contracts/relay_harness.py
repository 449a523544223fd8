"""The harness of the relayed store: a store in memory, and a real HTTP server in this process for each client.

Limits: there is no session, so `expire` cannot be tested here. An outage is a server that no client
reaches.
"""

from __future__ import annotations

import asyncio
import json
from types import SimpleNamespace
from typing import Any, cast

from uvicorn.config import Config as HttpConfig
from uvicorn.server import ServerState

from magnetar.admin.cluster.relay import Permissions, perform
from magnetar.admin.http.app import AdminApp
from magnetar.admin.http.call import AdminContext, Call, Reply, Route
from magnetar.client.http import HttpClient
from magnetar.config.metadata import MetadataConfig
from magnetar.config.process import HttpConfig as PortConfig
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.relay import RELAY_PATH, RelayedStore
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.slices import Slices
from magnetar.runtime.system import SystemRuntime
from magnetar.runtime.web_guard import WebGuard
from tests.contracts.metadata_harness import CONTRACT_CONFIG, StoreHarness

HOST = "127.0.0.1"
WATCH_S = 0.02


class Relay:
    """A broker's HTTP port that serves only the relay."""

    def __init__(self, store: MetadataStore, permissions: Permissions | None = None) -> None:
        self.port = 0
        self.asked: list[dict[str, Any]] = []
        self.lose: bool | None = None
        """The next answer: after the operation was done, or before; None: it arrives."""
        self.hold: asyncio.Event | None = None
        """Nothing is done before it is set."""
        self._store = store
        self._permissions = permissions
        route = Route("POST", RELAY_PATH, "Do one operation", self._handle, body="an operation")
        context = cast("AdminContext", SimpleNamespace(slices=Slices()))
        guard = WebGuard(PortConfig(), HOST)
        self._config = HttpConfig(
            AdminApp([route], lambda: context, guard), log_config=None, lifespan="off", ws="none", interface="asgi3"
        )
        self._config.load()
        self._state = ServerState()
        self._listening: asyncio.Server | None = None

    async def listen(self) -> None:
        if self._listening is None:
            self._listening = await asyncio.get_running_loop().create_server(self._new_protocol, HOST, self.port)
            self.port = int(self._listening.sockets[0].getsockname()[1])

    def vanish(self) -> None:
        """Closes the server, so that requests are not answered any more."""
        if self._listening is not None:
            self._listening.close()
            self._listening = None
        self._abort_connections()

    async def _handle(self, call: Call) -> Reply:
        lose, self.lose = self.lose, None
        body = json.loads(call.body)
        self.asked.append(body)
        if self.hold is not None:
            await self.hold.wait()
        reply = Reply() if lose is False else await perform(self._store, body, self._permissions)
        if lose is not None:
            self._abort_connections()
        return reply

    def _new_protocol(self) -> asyncio.Protocol:
        make = self._config.http_protocol_class
        loop = asyncio.get_running_loop()
        protocol = make(config=self._config, server_state=self._state, app_state={}, _loop=loop)  # type: ignore[call-arg]
        assert isinstance(protocol, asyncio.Protocol)
        return protocol

    def _abort_connections(self) -> None:
        for connection in list(self._state.connections):
            connection.transport.abort()


class RelayHarness(StoreHarness):
    def __init__(self, permissions: Permissions | None = None) -> None:
        self._entropy = SystemRuntime().entropy
        self._server = MemoryServer(self._entropy, CONTRACT_CONFIG)
        self.store = self._server.connect()
        """The broker's own."""
        self._permissions = permissions
        self._relays: dict[MetadataStore, Relay] = {}
        self._clients: list[HttpClient] = []

    async def connect(self, config: MetadataConfig = CONTRACT_CONFIG) -> MetadataStore:
        relay = Relay(self.store, self._permissions)
        await relay.listen()
        client = HttpClient(f"http://{HOST}:{relay.port}", self._entropy.random)
        store = RelayedStore(client, config, self._entropy.random, watch_s=WATCH_S)
        self._relays[store] = relay
        self._clients.append(client)
        return store

    def relay_of(self, store: MetadataStore) -> Relay:
        return self._relays[store]

    async def interrupt(self, store: MetadataStore) -> None:
        self._relays[store].vanish()

    async def restore(self, store: MetadataStore) -> None:
        await self._relays[store].listen()

    async def expire(self, store: MetadataStore) -> None:
        raise NotImplementedError(f"{store} has no session that could expire")

    async def lose_next_answer(self, store: MetadataStore, *, done: bool) -> None:
        self._relays[store].lose = done

    async def aclose(self) -> None:
        for client in self._clients:
            await client.aclose()
        for relay in self._relays.values():
            relay.vanish()
        await self._server.aclose()
