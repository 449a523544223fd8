from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest

from magnetar.broker.resources import documents as module
from magnetar.broker.resources.documents import TRIES_MAX, Documents, delete_tree
from magnetar.errors import (
    BadVersionError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from magnetar.metadata.cache import MetadataCache
from magnetar.metadata.store import MetadataStore
from tests.unit.broker.worlds import memory_store

PATH = "/admin/policies/a/b"


@pytest.fixture
async def documents(monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Documents]:
    monkeypatch.setattr(module, "_PAUSE_S", 0.0)
    async with memory_store() as store:
        cache = MetadataCache(store, entries_max=100)
        yield Documents(store, cache)
        await cache.aclose()


class Meddler:
    """Wraps `put`: before each of our first writes, another client changes the node."""

    def __init__(self, store: MetadataStore, times: int, monkeypatch: pytest.MonkeyPatch) -> None:
        self.left = times
        real = store.put

        async def put(path: str, value: bytes, version: int = -1) -> int:
            if self.left:
                self.left -= 1
                await real(path, b'{"other":%d}' % self.left)
            return await real(path, value, version)

        monkeypatch.setattr(store, "put", put)


async def test_unknown_fields_and_their_order_survive_a_change(documents: Documents) -> None:
    stored = b'{"zz":{"deep":[1,{"x":null}]},"message_ttl_in_seconds":1,"aa":"\xc3\xa9"}'
    await documents.store.create(PATH, stored, make_parents=True)
    await documents.update(PATH, lambda found: found | {"message_ttl_in_seconds": 2})
    node = await documents.store.get(PATH)
    assert node is not None
    assert node.value == stored.replace(b":1,", b":2,")


async def test_change_is_read_back_at_once(documents: Documents) -> None:
    await documents.create(PATH, {"n": 1})
    assert await documents.read(PATH) == {"n": 1}
    await documents.update(PATH, lambda found: found | {"n": 2})
    assert await documents.read(PATH) == {"n": 2}
    await documents.delete(PATH)
    assert await documents.read(PATH) is None


async def test_what_a_reader_does_to_its_copy_stays_there(documents: Documents) -> None:
    await documents.create(PATH, {"n": [1]})
    first = await documents.read(PATH)
    assert first is not None
    first["n"].append(2)
    assert await documents.read(PATH) == {"n": [1]}


async def test_lost_race_is_decided_again_on_what_is_there_then(
    documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    await documents.create(PATH, {"n": 1})
    Meddler(documents.store, 3, monkeypatch)
    assert await documents.update(PATH, lambda found: found | {"mine": True}) == {"other": 0, "mine": True}


async def test_race_that_is_always_lost_ends(documents: Documents, monkeypatch: pytest.MonkeyPatch) -> None:
    await documents.create(PATH, {})
    meddler = Meddler(documents.store, 10**6, monkeypatch)
    with pytest.raises(BadVersionError):
        await documents.update(PATH, lambda found: found | {"mine": True})
    assert meddler.left == 10**6 - TRIES_MAX


async def test_change_whose_outcome_is_unknown_is_looked_for(
    documents: Documents, monkeypatch: pytest.MonkeyPatch
) -> None:
    await documents.create(PATH, {"n": 1})
    real, calls = documents.store.put, 0

    async def put(path: str, value: bytes, version: int = -1) -> int:
        nonlocal calls
        calls += 1
        await real(path, value, version)
        raise OutcomeUnknownError("the connection was lost")

    monkeypatch.setattr(documents.store, "put", put)
    assert await documents.update(PATH, lambda found: found | {"n": 2}) == {"n": 2}
    assert calls == 1


async def test_decision_that_changes_nothing_writes_nothing(documents: Documents) -> None:
    await documents.create(PATH, {"n": 1})
    await documents.update(PATH, lambda _found: None)
    await documents.update(PATH, lambda found: dict(found))
    node = await documents.store.get(PATH)
    assert node is not None
    assert node.version == 0


async def test_decision_may_change_its_argument(documents: Documents) -> None:
    await documents.create(PATH, {"n": {"deep": 1}})

    def decide(found: dict[str, Any]) -> dict[str, Any]:
        found["n"]["deep"] = 2
        return found

    await documents.update(PATH, decide)
    assert await documents.read(PATH) == {"n": {"deep": 2}}


async def test_creating_over_a_mere_parent_fills_it_and_over_a_document_fails(documents: Documents) -> None:
    await documents.create(f"{PATH}/child", {})
    await documents.create(PATH, {"n": 1})
    assert await documents.read(PATH) == {"n": 1}
    with pytest.raises(NodeExistsError):
        await documents.create(PATH, {"n": 2})


async def test_updating_what_is_not_there_fails(documents: Documents) -> None:
    with pytest.raises(NoNodeError):
        await documents.update(PATH, lambda found: found)


async def test_several_make_one_document_and_all_changes_are_in_it(documents: Documents) -> None:
    names = [f"n{number}" for number in range(5)]
    await asyncio.gather(
        *(documents.update_or_create(PATH, lambda found, name=name: (found or {}) | {name: 1}) for name in names)  # type: ignore[misc]
    )
    assert sorted(await documents.read(PATH) or {}) == names


@pytest.mark.parametrize("value", [b"{", b"[]", b"5", b"\xff", b"null"])
async def test_value_that_is_not_an_object_is_an_error_that_names_the_node(documents: Documents, value: bytes) -> None:
    await documents.store.create(PATH, value, make_parents=True)
    with pytest.raises(MalformedMetadataError, match=PATH):
        await documents.read(PATH)


async def test_tree_is_deleted_leaves_first_and_its_absence_is_no_error(documents: Documents) -> None:
    for path in ("/x/a/b/c", "/x/a/d", "/x/e"):
        await documents.store.create(path, make_parents=True)
    await delete_tree(documents.store, "/x")
    assert await documents.store.get("/x") is None
    await delete_tree(documents.store, "/x")


async def test_tree_that_is_too_large_is_left_alone(documents: Documents) -> None:
    for number in range(5):
        await documents.store.create(f"/x/{number}", make_parents=True)
    with pytest.raises(MetadataError, match="more than 3"):
        await delete_tree(documents.store, "/x", nodes_max=3)
    assert len(await documents.store.children("/x")) == 5


async def test_what_a_decision_raises_travels_at_once_even_if_the_store_could_have_raised_it(
    documents: Documents,
) -> None:
    await documents.create(PATH, {})
    calls = 0

    def decide(_found: dict[str, Any]) -> dict[str, Any]:
        nonlocal calls
        calls += 1
        raise BadVersionError("not this one")

    with pytest.raises(BadVersionError, match="not this one"):
        await documents.update(PATH, decide)
    assert calls == 1
