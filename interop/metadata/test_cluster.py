"""A cluster's own nodes on a real ZooKeeper: initialisation, cookies, registrations."""

from __future__ import annotations

from interop.comparing import same
from interop.metadata.conftest import Cluster, Metadata
from interop.metadata.fields import cookie_fields, cookie_texts, service_info_fields
from interop.metadata.samples import COOKIES, SERVICE_INFOS
from magnetar.errors import ClusterExistsError, UnsupportedLayoutError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import HIERARCHICAL, LedgerLayout, init_cluster, read_cluster
from magnetar.metadata.bookkeeper.service_info import decode_service_info, encode_service_info
from magnetar.metadata.store import CreateMode


async def test_apache_accepts_a_cluster_that_we_initialised(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    made = await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    same("INSTANCEID", made.instance_id, await metadata.apache.ask("instanceId"))
    layout = {"manager": HIERARCHICAL, "version": 1, "formatVersion": 2}
    same("LAYOUT", layout, await metadata.apache.ask("readLayout"))
    opened = await metadata.apache.ask("openLedgers")
    same("factory", HIERARCHICAL, opened["factory"])
    same("manager", "org.apache.bookkeeper.meta.HierarchicalLedgerManager", opened["manager"])
    same("generator", "org.apache.bookkeeper.meta.LongZkLedgerIdGenerator", opened["generator"])
    same("a client of Apache's", "open", await metadata.apache.ask("openClient"))


async def test_apache_refuses_to_initialise_where_we_did(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    same("initNewCluster", False, await metadata.apache.ask("initNewCluster"))


async def test_we_accept_a_cluster_that_apache_initialised(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    same("initNewCluster", True, await metadata.apache.ask("initNewCluster"))
    found = await read_cluster(metadata.store, cluster.paths)
    same("INSTANCEID", found.instance_id, await metadata.apache.ask("instanceId"))
    same("LAYOUT", found.layout, LedgerLayout())
    same(
        "accepted",
        await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy, accept_existing=True),
        found,
    )


async def test_we_refuse_to_initialise_where_apache_did(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await metadata.apache.ask("initNewCluster")
    try:
        await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    except ClusterExistsError:
        return
    raise AssertionError("a second cluster was made at the same place")


async def test_both_initialise_the_same_nodes_with_the_same_values(metadata: Metadata) -> None:
    """Besides the random INSTANCEID, and `cookies`, which Apache makes with the first cookie."""
    theirs = await metadata.new_place()
    await metadata.apache.ask("initNewCluster")
    ours = await metadata.new_place()
    await init_cluster(metadata.store, ours.paths, metadata.runtime.entropy)
    expected = await _tree(theirs, theirs.paths.root)
    found = await _tree(ours, ours.paths.root)
    same("cookies", found.pop("/cookies"), b"")
    same("INSTANCEID's length", len(found.pop("/INSTANCEID")), len(expected.pop("/INSTANCEID")))
    same("nodes", found, expected)


async def _tree(cluster: Cluster, path: str) -> dict[str, bytes]:
    node = await cluster.store.get(path)
    assert node is not None
    found = {path.removeprefix(cluster.paths.root): node.value}
    for name in await cluster.store.children(path):
        found |= await _tree(cluster, f"{path}/{name}")
    return found


async def test_we_refuse_the_layouts_of_apache_that_we_do_not_speak(metadata: Metadata) -> None:
    for layout in ("flat", "longhierarchical"):
        cluster = await metadata.new_place(layout)
        same("initNewCluster", True, await metadata.apache.ask("initNewCluster"))
        try:
            await read_cluster(metadata.store, cluster.paths)
        except UnsupportedLayoutError:
            continue
        raise AssertionError(f"the layout {layout} was accepted")


async def test_apache_can_remove_a_cluster_that_we_made_with_all_that_is_in_it(metadata: Metadata) -> None:
    """Its validation passes only if it knows every node below the root."""
    cluster = await metadata.new_place()
    await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    await cluster.cookies.create(COOKIES["host and port"])
    await cluster.ids.next_id()
    same("nukeExistingCluster", True, await metadata.apache.ask("nukeExistingCluster"))
    same("the root", None, await metadata.store.get(cluster.paths.root))


async def test_apache_reads_the_cookies_that_we_stored(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    for name, cookie in COOKIES.items():
        await cluster.cookies.create(cookie)
        same(name, cookie_texts(cookie), await metadata.apache.ask("readCookie", bookie=cookie.bookie_id))


async def test_we_read_the_cookies_that_apache_stored(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await metadata.apache.ask("initNewCluster")
    for name, cookie in COOKIES.items():
        await metadata.apache.ask("writeCookie", cookie=cookie_fields(cookie))
        stored = await cluster.cookies.read(cookie.bookie_id)
        same(name, stored and cookie_fields(stored.value), cookie_fields(cookie))


async def test_apache_finds_the_bookies_that_we_registered(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await init_cluster(metadata.store, cluster.paths, metadata.runtime.entropy)
    legacy = BookieId("127.0.0.1:3181")
    infos = {
        legacy: b"",
        BookieId("rack-1.bookie-2"): encode_service_info(SERVICE_INFOS["everything"]),
        BookieId("bookie-3"): encode_service_info(SERVICE_INFOS["nothing but an endpoint"]),
    }
    for bookie, value in infos.items():
        path = cluster.paths.registration(bookie, readonly=bookie == "bookie-3")
        await metadata.store.create(path, value, mode=CreateMode.EPHEMERAL)
    seen = await metadata.apache.ask("bookies")
    same("writable", sorted(seen["writable"]), ["127.0.0.1:3181", "rack-1.bookie-2"])
    same("readonly", seen["readonly"], ["bookie-3"])
    for bookie, value in infos.items():
        ours = service_info_fields(decode_service_info(bookie, value))
        same(f"service info of {bookie}", ours, await metadata.apache.ask("serviceInfo", bookie=bookie))


async def test_we_find_the_bookies_that_apache_registered(metadata: Metadata) -> None:
    cluster = await metadata.new_place()
    await metadata.apache.ask("initNewCluster")
    for n, (name, info) in enumerate(SERVICE_INFOS.items()):
        bookie = BookieId(f"bookie-{n}")
        await metadata.apache.ask("register", bookie=bookie, readonly=n == 1, info=service_info_fields(info))
        await metadata.store.sync()
        node = await metadata.store.get(cluster.paths.registration(bookie, readonly=n == 1))
        assert node is not None, f"{bookie} is not where it should be"
        assert node.owner, f"the registration of {bookie} is not ephemeral"
        ours = service_info_fields(decode_service_info(bookie, node.value))
        same(name, ours, service_info_fields(info))
