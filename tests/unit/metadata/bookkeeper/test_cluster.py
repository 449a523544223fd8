"""Initialising a cluster's place, and recognising one."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from uuid import UUID

import pytest

from magnetar.errors import (
    ClusterExistsError,
    ClusterMissingError,
    MalformedMetadataError,
    MetadataUnavailableError,
    OutcomeUnknownError,
    UnsupportedLayoutError,
)
from magnetar.metadata.bookkeeper.cluster import LedgerLayout, decode_layout, init_cluster, read_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.local import Fate
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.store import MetadataStore, Sync, Transact
from magnetar.runtime.system import SystemEntropy
from tests.rows import every_row

ENTROPY = SystemEntropy()
LAYOUT = b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:1"


async def test_a_new_cluster_has_the_nodes_that_bookkeeper_expects(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    made = await init_cluster(store, paths, ENTROPY)
    assert await store.children("/ledgers") == ["INSTANCEID", "LAYOUT", "available", "cookies"]
    assert await store.children("/ledgers/available") == ["readonly"]
    layout, instance = await store.get("/ledgers/LAYOUT"), await store.get("/ledgers/INSTANCEID")
    assert layout is not None
    assert layout.value == LAYOUT
    assert instance is not None
    assert instance.value.decode() == made.instance_id == str(UUID(made.instance_id))
    assert await read_cluster(store, paths) == made


async def test_the_nodes_above_the_root_are_made(store: MetadataStore) -> None:
    paths = BookKeeperPaths("/deep/down/ledgers")
    made = await init_cluster(store, paths, ENTROPY)
    assert await read_cluster(store, paths) == made


async def test_a_second_cluster_at_the_same_place_is_refused_or_accepted_as_asked(
    store: MetadataStore, paths: BookKeeperPaths
) -> None:
    made = await init_cluster(store, paths, ENTROPY)
    with pytest.raises(ClusterExistsError, match="/ledgers"):
        await init_cluster(store, paths, ENTROPY)
    assert await init_cluster(store, paths, ENTROPY, accept_existing=True) == made


async def test_of_two_processes_that_initialise_at_once_one_wins(server: MemoryServer, paths: BookKeeperPaths) -> None:
    both = [init_cluster(server.connect(), paths, ENTROPY, accept_existing=True) for _ in range(2)]
    first, second = await asyncio.gather(*both)
    assert first == second
    third = BookKeeperPaths("/other")
    results = await asyncio.gather(
        *(init_cluster(server.connect(), third, ENTROPY) for _ in range(2)), return_exceptions=True
    )
    assert sorted(type(result).__name__ for result in results) == ["Cluster", "ClusterExistsError"]


async def test_an_initialisation_whose_answer_was_lost_is_recognised(
    breaking: Callable[..., MetadataStore], store: MetadataStore, paths: BookKeeperPaths
) -> None:
    made = await init_cluster(breaking(Transact, Fate.ANSWER_LOST), paths, ENTROPY)
    assert await read_cluster(store, paths) == made


async def test_an_initialisation_that_never_arrived_says_so(
    breaking: Callable[..., MetadataStore], store: MetadataStore, paths: BookKeeperPaths
) -> None:
    with pytest.raises(MetadataUnavailableError, match="try again"):
        await init_cluster(breaking(Transact, Fate.REQUEST_LOST), paths, ENTROPY)
    assert await store.get("/ledgers") is None


async def test_an_initialisation_that_cannot_be_looked_after_is_unknown(
    breaking: Callable[..., MetadataStore], paths: BookKeeperPaths
) -> None:
    with pytest.raises(OutcomeUnknownError):
        await init_cluster(breaking((Transact, Sync), Fate.ANSWER_LOST, Fate.ANSWER_LOST), paths, ENTROPY)


async def test_a_place_that_was_only_prepared_is_completed(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await store.create("/ledgers/available", make_parents=True)
    made = await init_cluster(store, paths, ENTROPY)
    assert await read_cluster(store, paths) == made
    assert await store.children("/ledgers/available") == ["readonly"]


async def test_a_place_with_other_things_in_it_is_refused(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await store.create("/ledgers/00/0000/L0001", make_parents=True)
    with pytest.raises(ClusterExistsError, match="not empty"):
        await init_cluster(store, paths, ENTROPY)


async def test_a_cluster_without_a_layout_is_accepted(store: MetadataStore, paths: BookKeeperPaths) -> None:
    """Pulsar's own driver writes none."""
    await store.create("/ledgers/INSTANCEID", b"some-id", make_parents=True)
    cluster = await read_cluster(store, paths)
    assert (cluster.layout, cluster.instance_id) == (None, "some-id")


async def test_a_cluster_without_an_instance_id_is_accepted(store: MetadataStore, paths: BookKeeperPaths) -> None:
    await store.create("/ledgers/available", make_parents=True)
    assert (await read_cluster(store, paths)).instance_id is None


@pytest.mark.parametrize(
    "value",
    [
        b"2\norg.apache.bookkeeper.meta.FlatLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.LongHierarchicalLedgerManagerFactory:1",
        b"2\norg.apache.bookkeeper.meta.HierarchicalLedgerManagerFactory:2",
        b"1\nflat:1",
    ],
)
async def test_another_layout_is_refused_and_nothing_is_made_there(
    store: MetadataStore, paths: BookKeeperPaths, value: bytes
) -> None:
    await store.create("/ledgers/LAYOUT", value, make_parents=True)
    with pytest.raises(UnsupportedLayoutError, match="layout"):
        await read_cluster(store, paths)
    with pytest.raises(UnsupportedLayoutError):
        await init_cluster(store, paths, ENTROPY)
    assert await store.children("/ledgers") == ["LAYOUT"]


async def test_no_cluster_is_a_named_error_that_says_what_to_do(store: MetadataStore, paths: BookKeeperPaths) -> None:
    with pytest.raises(ClusterMissingError, match="magnetar metadata init"):
        await read_cluster(store, paths)
    await store.create("/ledgers")
    with pytest.raises(ClusterMissingError):
        await read_cluster(store, paths)


@pytest.mark.parametrize("value", [b"", b"\xff", b"x" * 2_000])
async def test_an_instance_id_that_is_no_text_is_refused(
    store: MetadataStore, paths: BookKeeperPaths, value: bytes
) -> None:
    await store.create("/ledgers/INSTANCEID", value, make_parents=True)
    with pytest.raises(MalformedMetadataError, match="INSTANCEID"):
        await read_cluster(store, paths)


def test_the_layout_of_the_first_format_is_read() -> None:
    layout = decode_layout(b"1\nhierarchical:1")
    layout.require_supported()
    assert layout == LedgerLayout("hierarchical", 1, 1)


@every_row(
    "value",
    [
        b"",
        b"2",
        b"2\n",
        b"2\nname",
        b"2\nname:x",
        b"2\na:b:1",
        b"3\nname:1",
        b"0\nname:1",
        b"\xff\n",
        b"2\n" + b"x" * 2_000,
    ],
)
def test_a_layout_that_is_not_one_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError, match="LAYOUT"):
        decode_layout(value)
