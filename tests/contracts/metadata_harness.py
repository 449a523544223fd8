"""What the metadata contract needs of a store besides the store: its server, and the power to break things.

A harness is made for one test and one empty tree. Each kind of store has its own way to lose a connection or to end a
session; what the store must do then is the same for all.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import AsyncIterator

import pytest_asyncio

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.store import MetadataStore, SessionState, WatchEvent

CONTRACT_CONFIG = MetadataConfig(
    url="memory:", session_timeout_ms=4_000, operation_timeout_ms=5_000, connect_timeout_ms=15_000
)


class StoreHarness(ABC):
    @abstractmethod
    async def connect(self, config: MetadataConfig = CONTRACT_CONFIG) -> MetadataStore:
        """A new session with the tree of this test; `config.url` is the harness's to set."""

    @abstractmethod
    async def interrupt(self, store: MetadataStore) -> None:
        """Takes the store's connection away and keeps it away; returns when the store knows."""

    @abstractmethod
    async def restore(self, store: MetadataStore) -> None:
        """Lets the store reconnect; returns when it is usable."""

    @abstractmethod
    async def expire(self, store: MetadataStore) -> None:
        """Ends the session on the server's side; returns when the store has a new one."""

    @abstractmethod
    async def lose_next_answer(self, store: MetadataStore, *, done: bool) -> None:
        """The next operation is sent and its answer is lost with the connection; `done` says if the server did it."""

    @abstractmethod
    async def aclose(self) -> None: ...


class Recorder:
    """Collects watch events or session states in the order they come."""

    def __init__(self) -> None:
        self.events: list[WatchEvent] = []
        self.states: list[SessionState] = []

    def on_event(self, event: WatchEvent) -> None:
        self.events.append(event)

    def on_state(self, state: SessionState) -> None:
        self.states.append(state)

    @property
    def kinds(self) -> list[str]:
        return [event.kind.value for event in self.events]


async def value_of(store: MetadataStore, path: str) -> bytes:
    node = await store.get(path)
    assert node is not None, f"{path} does not exist"
    return node.value


class StoreContract:
    """Two sessions with one tree; a test module brings the `harness` fixture."""

    @pytest_asyncio.fixture
    async def store(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store

    @pytest_asyncio.fixture
    async def other(self, harness: StoreHarness) -> AsyncIterator[MetadataStore]:
        async with await harness.connect() as store:
            yield store
