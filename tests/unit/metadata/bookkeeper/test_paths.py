"""Ledger ids as paths and back, and listing every ledger."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import InvalidPathError, MalformedMetadataError, NoNodeError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.paths import (
    BookKeeperPaths,
    ledger_path_below_root,
    list_ledgers,
    parse_ledger_path,
    stored_bookie_id,
)
from magnetar.metadata.store import MetadataStore, Watcher
from tests.rows import every_row

KNOWN = {
    0: "00/0000/L0000",
    1: "00/0000/L0001",
    12_345_678: "00/1234/L5678",
    2**31 - 2: "21/4748/L3646",
    2**31 - 1: "000/0000/0021/4748/L3647",
    2**32: "000/0000/0042/9496/L7296",
    2**63 - 1: "922/3372/0368/5477/L5807",
}


@pytest.mark.parametrize(("ledger_id", "path"), KNOWN.items())
def test_a_ledger_id_has_the_path_that_bookkeeper_gives_it(ledger_id: int, path: str) -> None:
    assert ledger_path_below_root(LedgerId(ledger_id)) == path
    assert parse_ledger_path(path) == ledger_id


@given(st.integers(0, 2**63 - 1) | st.integers(2**31 - 5, 2**31 + 5))
def test_every_ledger_id_comes_back_from_its_path(ledger_id: int) -> None:
    paths = BookKeeperPaths("/some/root")
    assert paths.ledger_id_of(paths.ledger(LedgerId(ledger_id))) == ledger_id


@every_row(
    "path",
    [
        "",
        "available",
        "00/0000",
        "00/0000/0001",
        "00/0000/L00001",
        "0/0000/L0001",
        "00/0000/L000x",
        "٠٠/0000/L0001",  # Digits, but not ours.
        "21/4748/L3647",  # An id that has a long path.
        "99/9999/L9999",
        "000/0000/0000/0000/L0001",  # An id that has a short path.
        "922/3372/0368/5477/L5808",  # One beyond the largest.
        "999/9999/9999/9999/L9999",
        "00/0000/L0001\n",
    ],
)
def test_a_path_that_no_ledger_has_is_refused(path: str) -> None:
    with pytest.raises(MalformedMetadataError):
        parse_ledger_path(path)


def test_a_path_outside_the_root_is_refused() -> None:
    with pytest.raises(MalformedMetadataError, match="not below"):
        BookKeeperPaths("/ledgers").ledger_id_of("/ledgersX/00/0000/L0001")


def test_a_root_that_is_no_path_is_refused() -> None:
    with pytest.raises(InvalidPathError):
        BookKeeperPaths("ledgers")


def test_the_other_nodes_are_where_bookkeeper_has_them() -> None:
    paths = BookKeeperPaths()
    bookie = BookieId("b:3181")
    assert paths.layout == "/ledgers/LAYOUT"
    assert paths.instance_id == "/ledgers/INSTANCEID"
    assert paths.cookie(bookie) == "/ledgers/cookies/b:3181"
    assert paths.registration(bookie) == "/ledgers/available/b:3181"
    assert paths.registration(bookie, readonly=True) == "/ledgers/available/readonly/b:3181"
    assert (paths.short_ids, paths.long_ids) == ("/ledgers/idgen", "/ledgers/idgen-long")
    assert paths.underreplication == "/ledgers/underreplication"


@pytest.mark.parametrize("name", ["b:3181", "rack-1_a", "a@[b]", "x"])
def test_bookie_ids_that_apache_accepts_are_read(name: str) -> None:
    assert stored_bookie_id(name) == name


@pytest.mark.parametrize("name", ["", "a b", "a/b", "readonly", "ReadOnly", "ü", "a\n"])
def test_bookie_ids_that_apache_refuses_are_refused(name: str) -> None:
    with pytest.raises(ValueError, match="not a bookie id"):
        stored_bookie_id(name)


async def make(store: MetadataStore, paths: BookKeeperPaths, *ledger_ids: int) -> None:
    for ledger_id in ledger_ids:
        await store.create(paths.ledger(LedgerId(ledger_id)), make_parents=True)


async def test_all_ledgers_are_listed_in_rising_order(store: MetadataStore, paths: BookKeeperPaths) -> None:
    expected = [0, 5, 9_999, 10_000, 99_999_999, 2**31 - 2, 2**31 - 1, 2**32, 2**40, 2**63 - 1]
    await make(store, paths, *reversed(expected))
    assert [ledger_id async for ledger_id in list_ledgers(store, paths)] == expected


async def test_nodes_that_are_no_ledgers_are_not_listed(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await make(store, paths, 7)
    others = [
        "LAYOUT",
        "INSTANCEID",
        "available/readonly",
        "cookies/b:1",
        "idgen/ID-0000000000",
        "idgen-long/HOB-0000000001",
    ]
    others += [
        "underreplication/ledgers/0000/0000/0000/0000/urL0000000007",
        "1",
        "1234",
        "00/0000/X0001",
        "00/000/L0001",
    ]
    others += ["000/0000/0000/0000/L0001", "00/0001/L0001/child", "99/9999/L9999"]
    for name in others:
        await store.create(f"{paths.root}/{name}", make_parents=True)
    assert [ledger_id async for ledger_id in list_ledgers(store, paths)] == [7, 10_001]


async def test_directories_that_vanish_while_ledgers_are_listed_are_left_out(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    await make(store, paths, 1, 10_001, 20_001)
    listed = list_ledgers(store, paths)
    assert await anext(listed) == 1
    await store.delete(paths.ledger(LedgerId(10_001)))
    await store.delete(f"{paths.root}/00/0001")
    assert [ledger_id async for ledger_id in listed] == [20_001]


async def test_listing_reads_only_as_far_as_the_caller_goes(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await make(store, paths, *range(0, 200_000, 10_000))
    reads: list[str] = []
    original = store.children

    async def counted(path: str, *, watch: Watcher | None = None) -> list[str]:
        reads.append(path)
        return await original(path, watch=watch)

    store.children = counted  # type: ignore[method-assign]
    listed = list_ledgers(store, paths)
    assert await anext(listed) == 0
    assert reads == ["/ledgers", "/ledgers/00", "/ledgers/00/0000"]
    await listed.aclose()  # type: ignore[attr-defined]


async def test_listing_a_place_without_a_cluster_is_an_error(store: MetadataStore, paths: BookKeeperPaths) -> None:
    with pytest.raises(NoNodeError):
        await anext(list_ledgers(store, paths))
