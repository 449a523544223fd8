"""Nodes that Apache's classes made in a ZooKeeper (tests/golden/BookkeeperNodes.java): ours have the same bytes."""

from __future__ import annotations

import json
from pathlib import Path
from uuid import UUID

from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.cluster import decode_instance_id, init_cluster
from magnetar.metadata.bookkeeper.cookies import Cookie, CookieStore, decode_cookie
from magnetar.metadata.bookkeeper.id_generator import LedgerIdGenerator
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.service_info import (
    BookieServiceInfo,
    Endpoint,
    decode_service_info,
    encode_service_info,
)
from magnetar.metadata.bookkeeper.underreplication import (
    Mark,
    UnderreplicationMarks,
    decode_mark,
    encode_mark,
    mark_path,
)
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import Create, CreateMode, MetadataStore
from magnetar.runtime.system import SystemEntropy

GOLDEN: dict[str, list[tuple[str, str, str]]] = json.loads(
    (Path(__file__).parents[3] / "golden" / "bookkeeper-nodes.json").read_text()
)
PATHS = BookKeeperPaths()
BOOKIE = BookieId("10.0.0.1:3181")
OTHER = BookieId("b-2")
LARGE = LedgerId(0x7AFEBEEF0000FEED)


def made(step: str) -> dict[str, bytes]:
    return {path: bytes.fromhex(value) for path, _, value in GOLDEN[step]}


def modes(step: str) -> list[tuple[str, str]]:
    return [(path, mode) for path, mode, _ in GOLDEN[step]]


async def tree(store: MetadataStore, path: str) -> dict[str, bytes]:
    node = await store.get(path)
    assert node is not None, path
    found = {path: node.value}
    for child in await store.children(path):
        found |= await tree(store, f"{path}/{child}")
    return found


async def test_a_new_cluster_has_the_nodes_of_apache_and_the_cookies_before_the_first_cookie(
    store: MetadataStore,
) -> None:
    await init_cluster(store, PATHS, SystemEntropy())
    ours, apaches = await tree(store, PATHS.root), made("initialise")
    for nodes in (ours, apaches):
        instance_id = decode_instance_id(nodes.pop(PATHS.instance_id))
        assert instance_id == str(UUID(instance_id))
    assert ours == apaches | {PATHS.cookies: b""}


async def test_a_cookie_is_stored_where_apache_stores_it_in_the_same_bytes(store: MetadataStore) -> None:
    value = made("cookie")[PATHS.cookie(BOOKIE)]
    cookie = Cookie(bookie_id=BOOKIE, journal_dirs=("/j",), ledger_dirs=("/l",), instance_id="fixed")
    assert decode_cookie(value) == cookie
    await CookieStore(store, PATHS).create(cookie)
    assert await tree(store, PATHS.cookies) == made("cookie")


def test_a_bookie_registers_where_apaches_does_in_the_same_bytes() -> None:
    info = BookieServiceInfo((Endpoint(id="bookie", host="10.0.0.1", port=3181, protocol="bookie-rpc"),))
    for step, readonly in (("register", False), ("register read-only", True)):
        assert modes(step) == [(PATHS.registration(BOOKIE, readonly=readonly), "EPHEMERAL")]
        (value,) = made(step).values()
        assert encode_service_info(info) == value
        assert decode_service_info(BOOKIE, value) == info


async def test_ledger_ids_are_counted_by_the_same_nodes(server: MemoryServer) -> None:
    seen: list[tuple[str, str]] = []
    store = server.connect()

    class Noting:
        transact = store.transact
        get = store.get
        children = store.children

        async def create(
            self, path: str, value: bytes = b"", *, mode: CreateMode = CreateMode.PERSISTENT, make_parents: bool = False
        ) -> str:
            seen.append((path, mode.name))
            return await store.create(path, value, mode=mode, make_parents=make_parents)

    for step in ("short ledger id", "long ledger id"):
        seen.clear()
        if step == "long ledger id":
            await store.create(PATHS.long_ids)
        ids = LedgerIdGenerator(Noting(), PATHS)  # type: ignore[arg-type]
        await ids.next_id()
        await ids.aclose()
        folders = [(path, mode) for path, mode in modes(step) if path not in (PATHS.short_ids, PATHS.long_ids)]
        assert seen == folders


async def test_the_tree_of_marks_and_the_marks_in_it_are_those_of_apache(store: MetadataStore) -> None:
    marks = UnderreplicationMarks(store, PATHS)
    await marks.prepare()
    assert await tree(store, PATHS.underreplication) == made("marks prepared")
    for ledger_id in (LedgerId(5), LARGE):
        path, value = list(made(f"mark of {ledger_id}").items())[-1]
        assert path == mark_path(PATHS, ledger_id)
        mark = decode_mark(value)
        assert mark.replicas == (BOOKIE,)
        assert mark.ctime_ms is not None
        await marks.mark(ledger_id, mark.replicas, mark.ctime_ms)
        assert (await tree(store, path))[path] == value


async def test_a_second_mark_changes_the_first_as_apache_does(store: MetadataStore) -> None:
    ((path, value),) = made("second mark of 5").items()
    first, both = decode_mark(made("mark of 5")[path]), decode_mark(value)
    assert both.replicas == (BOOKIE, OTHER)
    assert encode_mark(both) == value
    marks = UnderreplicationMarks(store, PATHS)
    await store.transact([Create(PATHS.root), Create(PATHS.underreplication)])
    assert first.ctime_ms is not None
    assert both.ctime_ms is not None
    await marks.mark(LedgerId(5), first.replicas, first.ctime_ms)
    await marks.mark(LedgerId(5), [OTHER], both.ctime_ms)
    assert (await tree(store, path))[path] == value
    assert await marks.read(LedgerId(5)) == Mark((BOOKIE, OTHER), both.ctime_ms)
