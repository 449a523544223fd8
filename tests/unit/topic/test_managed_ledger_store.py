"""A topic's node in a store whose connection is lost at the worst moments."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import BadVersionError, MetadataUnavailableError, OutcomeUnknownError
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.system import SystemRuntime
from magnetar.topic.chain import LedgerSpan
from magnetar.topic.log.managed_ledger import NO_NODE, ManagedLedger, ManagedLedgerStore

TOPIC = "public/default/persistent/orders"
ONE = ManagedLedger((LedgerSpan(1),))
TWO = ManagedLedger((LedgerSpan(2),))


class LossyStore:
    """Passes calls on to a store, and loses the connection before or after the one that a test names."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.losses: list[str] = []

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def put(self, path: str, value: bytes, version: int) -> int:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "unreachable":
            raise MetadataUnavailableError("planted")
        if loss == "before":
            raise OutcomeUnknownError("planted")
        done = await self._store.put(path, value, version)
        if loss == "after":
            raise OutcomeUnknownError("planted")
        return done

    async def create(self, path: str, value: bytes, *, make_parents: bool) -> str:
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            raise OutcomeUnknownError("planted")
        done = await self._store.create(path, value, make_parents=make_parents)
        if loss == "after":
            raise OutcomeUnknownError("planted")
        return done


@pytest.fixture
async def store() -> AsyncIterator[LossyStore]:
    entropy = SystemRuntime().entropy
    server = MemoryServer(entropy, MetadataConfig(url="memory:"))
    async with server.connect() as connected:
        yield LossyStore(connected)
    await server.aclose()


@pytest.fixture
def ledgers(store: LossyStore) -> ManagedLedgerStore:
    return ManagedLedgerStore(store, SystemRuntime().entropy)  # type: ignore[arg-type]


async def stored_ledgers(ledgers: ManagedLedgerStore) -> list[int]:
    stored = await ledgers.read(TOPIC)
    assert stored is not None
    return [span.ledger_id for span in stored.value.spans]


@pytest.mark.parametrize("losses", [[], ["before"], ["after"], ["before", "before"], ["before", "after"]])
async def test_node_is_made_once_whatever_is_lost(
    store: LossyStore, ledgers: ManagedLedgerStore, losses: list[str]
) -> None:
    store.losses = losses
    assert await ledgers.write(TOPIC, ONE, NO_NODE) == 0
    assert await stored_ledgers(ledgers) == [1]


@pytest.mark.parametrize(
    "losses", [[], ["before"], ["after"], ["unreachable"], ["before", "unreachable", "after"], ["unreachable", "after"]]
)
async def test_node_is_written_once_whatever_is_lost(
    store: LossyStore, ledgers: ManagedLedgerStore, losses: list[str]
) -> None:
    version = await ledgers.write(TOPIC, ONE, NO_NODE)
    store.losses = losses
    assert await ledgers.write(TOPIC, TWO, version) == version + 1
    assert await stored_ledgers(ledgers) == [2]


@pytest.mark.parametrize("losses", [[], ["before"], ["unreachable"]])
async def test_another_writer_is_never_taken_for_ourselves(
    store: LossyStore, ledgers: ManagedLedgerStore, losses: list[str]
) -> None:
    version = await ledgers.write(TOPIC, ONE, NO_NODE)
    await ledgers.write(TOPIC, ManagedLedger((LedgerSpan(9),)), version)
    store.losses = losses
    with pytest.raises(BadVersionError):
        await ledgers.write(TOPIC, TWO, version)
    assert await stored_ledgers(ledgers) == [9]


async def test_node_that_exists_is_not_made(ledgers: ManagedLedgerStore) -> None:
    await ledgers.write(TOPIC, ONE, NO_NODE)
    with pytest.raises(BadVersionError):
        await ledgers.write(TOPIC, TWO, NO_NODE)


async def test_node_that_was_deleted_is_not_written(ledgers: ManagedLedgerStore) -> None:
    version = await ledgers.write(TOPIC, ONE, NO_NODE)
    await ledgers.delete(TOPIC, version)
    with pytest.raises(BadVersionError):
        await ledgers.write(TOPIC, TWO, version)
    await ledgers.delete(TOPIC, version)  # A second deletion finds nothing, and succeeds.
