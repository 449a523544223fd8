"""A cluster's own nodes on a real ZooKeeper: initialisation, cookies, registrations."""

from __future__ import annotations

from interop.metadata.fields import cookie_fields, cookie_texts, service_info_fields
from interop.metadata.part import Cluster, Metadata
from interop.metadata.samples import COOKIES, SERVICE_INFOS
from interop.runner import same
from magnetar.errors import ClusterExistsError, UnsupportedLayoutError
from magnetar.ids import BookieId
from magnetar.metadata.bookkeeper.cluster import init_cluster, read_cluster
from magnetar.metadata.bookkeeper.layout import HIERARCHICAL, LedgerLayout
from magnetar.metadata.bookkeeper.service_info import decode_service_info, encode_service_info
from magnetar.metadata.store import CreateMode


async def apache_accepts_a_cluster_that_we_initialised(m: Metadata) -> None:
    cluster = await m.new_place()
    made = await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    same("INSTANCEID", made.instance_id, await m.apache.ask("instanceId"))
    layout = {"manager": HIERARCHICAL, "version": 1, "formatVersion": 2}
    same("LAYOUT", layout, await m.apache.ask("readLayout"))
    opened = await m.apache.ask("openLedgers")
    same("factory", HIERARCHICAL, opened["factory"])
    same("manager", "org.apache.bookkeeper.meta.HierarchicalLedgerManager", opened["manager"])
    same("generator", "org.apache.bookkeeper.meta.LongZkLedgerIdGenerator", opened["generator"])
    same("a client of Apache's", "open", await m.apache.ask("openClient"))


async def apache_refuses_to_initialise_where_we_did(m: Metadata) -> None:
    cluster = await m.new_place()
    await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    same("initNewCluster", False, await m.apache.ask("initNewCluster"))


async def we_accept_a_cluster_that_apache_initialised(m: Metadata) -> None:
    cluster = await m.new_place()
    same("initNewCluster", True, await m.apache.ask("initNewCluster"))
    found = await read_cluster(m.store, cluster.paths)
    same("INSTANCEID", found.instance_id, await m.apache.ask("instanceId"))
    same("LAYOUT", found.layout, LedgerLayout())
    same("accepted", await init_cluster(m.store, cluster.paths, m.runtime.entropy, accept_existing=True), found)


async def we_refuse_to_initialise_where_apache_did(m: Metadata) -> None:
    cluster = await m.new_place()
    await m.apache.ask("initNewCluster")
    try:
        await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    except ClusterExistsError:
        return
    raise AssertionError("a second cluster was made at the same place")


async def both_initialise_the_same_nodes_with_the_same_values(m: Metadata) -> None:
    """Besides the random INSTANCEID, and `cookies`, which Apache makes with the first cookie."""
    theirs = await m.new_place()
    await m.apache.ask("initNewCluster")
    ours = await m.new_place()
    await init_cluster(m.store, ours.paths, m.runtime.entropy)
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


async def we_refuse_the_layouts_of_apache_that_we_do_not_speak(m: Metadata) -> None:
    for layout in ("flat", "longhierarchical"):
        cluster = await m.new_place(layout)
        same("initNewCluster", True, await m.apache.ask("initNewCluster"))
        try:
            await read_cluster(m.store, cluster.paths)
        except UnsupportedLayoutError:
            continue
        raise AssertionError(f"the layout {layout} was accepted")


async def apache_can_remove_a_cluster_that_we_made_with_all_that_is_in_it(m: Metadata) -> None:
    """Its validation passes only if it knows every node below the root."""
    cluster = await m.new_place()
    await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    await cluster.cookies.create(COOKIES["host and port"])
    await cluster.ids.next_id()
    same("nukeExistingCluster", True, await m.apache.ask("nukeExistingCluster"))
    same("the root", None, await m.store.get(cluster.paths.root))


async def apache_reads_the_cookies_that_we_stored(m: Metadata) -> None:
    cluster = await m.new_place()
    await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    for name, cookie in COOKIES.items():
        await cluster.cookies.create(cookie)
        same(name, cookie_texts(cookie), await m.apache.ask("readCookie", bookie=cookie.bookie_id))


async def we_read_the_cookies_that_apache_stored(m: Metadata) -> None:
    cluster = await m.new_place()
    await m.apache.ask("initNewCluster")
    for name, cookie in COOKIES.items():
        await m.apache.ask("writeCookie", cookie=cookie_fields(cookie))
        stored = await cluster.cookies.read(cookie.bookie_id)
        same(name, stored and cookie_fields(stored.value), cookie_fields(cookie))


async def apache_finds_the_bookies_that_we_registered(m: Metadata) -> None:
    cluster = await m.new_place()
    await init_cluster(m.store, cluster.paths, m.runtime.entropy)
    legacy = BookieId("127.0.0.1:3181")
    infos = {
        legacy: b"",
        BookieId("rack-1.bookie-2"): encode_service_info(SERVICE_INFOS["everything"]),
        BookieId("bookie-3"): encode_service_info(SERVICE_INFOS["nothing but an endpoint"]),
    }
    for bookie, value in infos.items():
        path = cluster.paths.registration(bookie, readonly=bookie == "bookie-3")
        await m.store.create(path, value, mode=CreateMode.EPHEMERAL)
    seen = await m.apache.ask("bookies")
    same("writable", sorted(seen["writable"]), ["127.0.0.1:3181", "rack-1.bookie-2"])
    same("readonly", seen["readonly"], ["bookie-3"])
    for bookie, value in infos.items():
        ours = service_info_fields(decode_service_info(bookie, value))
        same(f"service info of {bookie}", ours, await m.apache.ask("serviceInfo", bookie=bookie))


async def we_find_the_bookies_that_apache_registered(m: Metadata) -> None:
    cluster = await m.new_place()
    await m.apache.ask("initNewCluster")
    for n, (name, info) in enumerate(SERVICE_INFOS.items()):
        bookie = BookieId(f"bookie-{n}")
        await m.apache.ask("register", bookie=bookie, readonly=n == 1, info=service_info_fields(info))
        await m.store.sync()
        node = await m.store.get(cluster.paths.registration(bookie, readonly=n == 1))
        assert node is not None, f"{bookie} is not where it should be"
        assert node.owner, f"the registration of {bookie} is not ephemeral"
        ours = service_info_fields(decode_service_info(bookie, node.value))
        same(name, ours, service_info_fields(info))


CHECKS = [
    apache_accepts_a_cluster_that_we_initialised,
    apache_refuses_to_initialise_where_we_did,
    we_accept_a_cluster_that_apache_initialised,
    we_refuse_to_initialise_where_apache_did,
    both_initialise_the_same_nodes_with_the_same_values,
    we_refuse_the_layouts_of_apache_that_we_do_not_speak,
    apache_can_remove_a_cluster_that_we_made_with_all_that_is_in_it,
    apache_reads_the_cookies_that_we_stored,
    we_read_the_cookies_that_apache_stored,
    apache_finds_the_bookies_that_we_registered,
    we_find_the_bookies_that_apache_registered,
]
