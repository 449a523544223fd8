"""Changes that are tried until their outcome is known: when to look, when to give up, and what to raise then."""

from __future__ import annotations

from collections.abc import AsyncIterator, Sequence
from random import Random

import pytest

from magnetar.config.metadata import MetadataConfig
from magnetar.errors import (
    BadVersionError,
    MetadataError,
    MetadataUnavailableError,
    NoSuchLedgerError,
    NotEmptyError,
    OutcomeUnknownError,
    SessionExpiredError,
)
from magnetar.metadata.compare_and_set import delete_until_known, try_until_known
from magnetar.metadata.local import LocalStore
from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.backoff import Backoff
from magnetar.runtime.system import SystemRuntime

UNKNOWN = OutcomeUnknownError("the answer was lost")
AWAY = MetadataUnavailableError("away")
EXPIRED = SessionExpiredError("expired")
RACE = BadVersionError("another was faster")


class Attempts:
    """Fails as planned, then succeeds; notes whether each attempt had to look, and every retry."""

    def __init__(self, failures: Sequence[Exception]) -> None:
        self._failures = list(failures)
        self.looks: list[bool] = []
        self.retries: list[MetadataError] = []

    async def __call__(self, must_look: bool) -> str:
        self.looks.append(must_look)
        if self._failures:
            raise self._failures.pop(0)
        return "done"

    async def run(self, tries_max: int = 4, *, may_lose: bool = True) -> str:
        backoff = Backoff(Random(1), first_s=0.0001, longest_s=0.0001)
        lost_race = BadVersionError if may_lose else ()
        return await try_until_known(self, backoff, tries_max, lost_race=lost_race, on_retry=self.retries.append)


async def test_a_first_attempt_that_succeeds_does_not_look() -> None:
    attempts = Attempts([])
    assert await attempts.run() == "done"
    assert attempts.looks == [False]
    assert not attempts.retries


@pytest.mark.parametrize("failure", [UNKNOWN, RACE])
async def test_after_an_unknown_outcome_or_a_lost_race_every_attempt_looks(failure: Exception) -> None:
    attempts = Attempts([failure, AWAY])
    assert await attempts.run() == "done"
    assert attempts.looks == [False, True, True]


@pytest.mark.parametrize("failure", [AWAY, EXPIRED])
async def test_an_attempt_that_was_not_done_is_no_reason_to_look(failure: Exception) -> None:
    attempts = Attempts([failure, failure])
    assert await attempts.run() == "done"
    assert attempts.looks == [False, False, False]


@pytest.mark.parametrize("failure", [UNKNOWN, RACE, AWAY, EXPIRED])
async def test_attempts_end(failure: Exception) -> None:
    attempts = Attempts([failure] * 10)
    with pytest.raises(type(failure)) as raised:
        await attempts.run(tries_max=3)
    assert raised.value is failure
    assert len(attempts.looks) == 3
    assert len(attempts.retries) == 2


@pytest.mark.parametrize("later", [AWAY, EXPIRED, RACE])
async def test_an_unknown_outcome_stays_unknown_whatever_fails_after_it(later: Exception) -> None:
    attempts = Attempts([AWAY, UNKNOWN, *[later] * 10])
    with pytest.raises(OutcomeUnknownError) as raised:
        await attempts.run()
    assert raised.value is UNKNOWN
    assert attempts.retries == [AWAY, UNKNOWN, UNKNOWN]


async def test_the_newest_unknown_outcome_is_raised() -> None:
    newest = OutcomeUnknownError("lost once more")
    with pytest.raises(OutcomeUnknownError) as raised:
        await Attempts([UNKNOWN, newest, AWAY]).run(tries_max=3)
    assert raised.value is newest


async def test_a_lost_race_travels_at_once_where_it_is_not_expected() -> None:
    attempts = Attempts([UNKNOWN, RACE])
    with pytest.raises(BadVersionError):
        await attempts.run(may_lose=False)
    assert attempts.looks == [False, True]


@pytest.mark.parametrize("error", [NoSuchLedgerError("gone"), ValueError("a bug"), NotEmptyError("children")])
async def test_any_other_error_travels_at_once_even_after_an_unknown_outcome(error: Exception) -> None:
    attempts = Attempts([UNKNOWN, error])
    with pytest.raises(type(error)):
        await attempts.run()
    assert len(attempts.looks) == 2


# --- deleting ---------------------------------------------------------------------------------------------------------


class LossyDeletes:
    """Passes on to a store, and loses the connection before or after a delete."""

    def __init__(self, store: LocalStore) -> None:
        self._store = store
        self.losses: list[str] = []
        self.deletes = 0

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    async def delete(self, path: str, version: int) -> None:
        self.deletes += 1
        loss = self.losses.pop(0) if self.losses else ""
        if loss == "before":
            raise OutcomeUnknownError("planted")
        await self._store.delete(path, version)
        if loss == "after":
            raise OutcomeUnknownError("planted")


@pytest.fixture
async def store() -> AsyncIterator[LossyDeletes]:
    server = MemoryServer(SystemRuntime().entropy, MetadataConfig(url="memory:"))
    async with server.connect() as connected:
        yield LossyDeletes(connected)
    await server.aclose()


async def delete(store: LossyDeletes, version: int = 0, tries_max: int = 3) -> None:
    await delete_until_known(store, "/node", version, tries_max)  # type: ignore[arg-type]


async def make(store: LossyDeletes, path: str = "/node") -> None:
    await store._store.create(path, b"value")


@pytest.mark.parametrize("losses", [[], ["before"], ["after"], ["before", "before"], ["before", "after"]])
async def test_a_node_is_deleted_whatever_is_lost(store: LossyDeletes, losses: list[str]) -> None:
    await make(store)
    store.losses = losses
    await delete(store)
    assert await store._store.get("/node") is None


async def test_a_node_that_does_not_exist_is_deleted(store: LossyDeletes) -> None:
    await delete(store)


async def test_a_node_of_another_version_is_not_deleted(store: LossyDeletes) -> None:
    await make(store)
    await store._store.put("/node", b"another's", 0)
    store.losses = ["before"]
    with pytest.raises(BadVersionError):
        await delete(store)
    assert await store._store.get("/node") is not None


async def test_a_node_with_children_is_not_deleted(store: LossyDeletes) -> None:
    await make(store)
    await make(store, "/node/child")
    with pytest.raises(NotEmptyError):
        await delete(store)


async def test_a_delete_whose_answers_are_all_lost_stays_unknown(store: LossyDeletes) -> None:
    await make(store)
    store.losses = ["before"] * 3
    with pytest.raises(OutcomeUnknownError, match="may or may not be deleted"):
        await delete(store)
    assert store.deletes == 3
