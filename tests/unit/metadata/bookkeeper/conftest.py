"""A memory store per test, and stores whose connection breaks at chosen requests."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import Fate, Link
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore, Request
from magnetar.runtime.system import SystemEntropy


class Breaks(Link):
    """Gives each request of one kind the next fate of a list, and lets everything else pass."""

    def __init__(self, kind: type | tuple[type, ...], *fates: Fate) -> None:
        self._kind = kind
        self._fates = list(fates)

    def fate(self, request: Request) -> Fate:
        if isinstance(request, self._kind) and self._fates:
            return self._fates.pop(0)
        return Fate.DELIVERED


@pytest.fixture
async def server() -> AsyncIterator[MemoryServer]:
    server = MemoryServer(SystemEntropy(), MetadataConfig(operation_timeout_ms=2_000))
    yield server
    await server.aclose()


@pytest.fixture
def store(server: MemoryServer) -> MetadataStore:
    return server.connect()


@pytest.fixture
def breaking(server: MemoryServer) -> Callable[..., MetadataStore]:
    """A store of the same server: `breaking(Create, Fate.ANSWER_LOST, …)`."""
    return lambda kind, *fates: server.connect(link=Breaks(kind, *fates))


@pytest.fixture
def paths() -> BookKeeperPaths:
    return BookKeeperPaths()
