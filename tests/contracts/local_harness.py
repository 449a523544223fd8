"""The harness of the stores that live in this process."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from magnetar.config.metadata import MetadataConfig
from magnetar.metadata.local import Fate, Link, LocalServer, LocalStore
from magnetar.metadata.store import MetadataStore, Request
from magnetar.testing.waiting import until
from tests.contracts.metadata_harness import CONTRACT_CONFIG, StoreHarness


class BreakableLink(Link):
    def __init__(self) -> None:
        self.next_fate = Fate.DELIVERED

    def fate(self, request: Request) -> Fate:
        fate, self.next_fate = self.next_fate, Fate.DELIVERED
        return fate


class LocalHarness(StoreHarness):
    def __init__(self, server: LocalServer) -> None:
        self._server = server
        self._links: dict[MetadataStore, BreakableLink] = {}

    @classmethod
    async def start(cls, make_server: Callable[[], Awaitable[LocalServer]]) -> LocalHarness:
        return cls(await make_server())

    async def connect(self, config: MetadataConfig = CONTRACT_CONFIG) -> MetadataStore:
        link = BreakableLink()
        store = self._server.connect(config, link)
        self._links[store] = link
        return store

    async def interrupt(self, store: MetadataStore) -> None:
        self._server.cut(_local(store))

    async def restore(self, store: MetadataStore) -> None:
        self._server.mend(_local(store))
        await until(lambda: store.session.state.is_usable, "the store is usable again")

    async def expire(self, store: MetadataStore) -> None:
        await self._server.expire(_local(store))

    async def lose_next_answer(self, store: MetadataStore, *, done: bool) -> None:
        self._links[store].next_fate = Fate.ANSWER_LOST if done else Fate.REQUEST_LOST

    async def aclose(self) -> None:
        await self._server.aclose()


def _local(store: MetadataStore) -> LocalStore:
    assert isinstance(store, LocalStore)
    return store
