"""The metadata store in memory, shared by simulated processes.

Why:       the server is one object, and calls watchers and session listeners directly. Here each of them runs as its
           own process instead, and a dead process is not told anything.
Crash:     the server sees the connection break; the session ends when its timeout is over, as ZooKeeper's does.
Read next: magnetar/metadata/local.py
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import Link, LocalServer, LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.requests import Children, Get, Request
from magnetar.metadata.session import Session, SessionListener
from magnetar.sim.process import PROCESS, Process, bound


class ProcessSession(Session):
    def listen(self, listener: SessionListener) -> Callable[[], None]:
        return super().listen(bound(listener))


class ProcessStore(LocalStore):
    def __init__(self, server: LocalServer, config: MetadataConfig, link: Link | None = None) -> None:
        super().__init__(server, config, link)
        self.session = ProcessSession(self.session.id, config.session_timeout_ms)
        self.process = PROCESS.get(None)

    def _submit(self, request: Request) -> asyncio.Future[Any]:
        if isinstance(request, Get | Children) and request.watch is not None:
            request = dataclasses.replace(request, watch=bound(request.watch))
        return super()._submit(request)


class SimMetadata(MemoryServer):
    """`connect` is called by the process that uses the store, `on_crash` by the world."""

    def connect(self, config: MetadataConfig | None = None, link: Link | None = None) -> ProcessStore:
        store = ProcessStore(self, config or self.config, link)
        self.adopt(store)
        return store

    def on_crash(self, process: Process) -> None:
        for store in list(self._stores.values()):
            if isinstance(store, ProcessStore) and store.process is process:
                self.cut(store)
