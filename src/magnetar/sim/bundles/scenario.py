"""The scenario of bundles: what a world of brokers that agree on owners is made of, and how it settles.

Settled:   every broker runs → the operator and the producers end → in seeds in which the leader balances, the world is
           left alone until bundles should not move any more, and watched a while longer (V9) → as for topics, clients
           leave, topics are loaded anew, read and drained → what the operator was told is compared (T7) → all ends.
Read next: ../run.py, watch.py, cluster.py, workload.py
"""

from __future__ import annotations

import asyncio
from functools import partial
from typing import Final

from magnetar.client import PulsarClient
from magnetar.client.http import HttpClient
from magnetar.errors import MagnetarError
from magnetar.sim.bundles.cluster import BundleCluster
from magnetar.sim.bundles.invariants import ALL, QUIET_S, SETTLED_S, leaders
from magnetar.sim.bundles.nemesis import BundleNemesis
from magnetar.sim.bundles.operator import OPERATOR
from magnetar.sim.bundles.options import FAULTS, draw
from magnetar.sim.bundles.watch import BundleWatch
from magnetar.sim.bundles.workload import BundleWorkload
from magnetar.sim.run import Scenario
from magnetar.sim.seeds import seeded
from magnetar.sim.topics import scenario as topics
from magnetar.sim.topics.observe import observed

_INSPECTOR: Final = "inspector"


async def settle(cluster: BundleCluster, workload: BundleWorkload, watch: BundleWatch) -> None:
    workload.operator.is_over = True
    if not await topics.brokers_serve(cluster):
        return
    await _end_operator(cluster)
    if cluster.bundle_options.balances:
        for producer in workload.producers:
            producer.is_over = True
        await asyncio.sleep(SETTLED_S + QUIET_S)
        watch.counters["balanced seeds"] += 1
    await topics.end_apps(cluster, workload)
    await _inspect(cluster, workload)
    one = partial(_has_one_leader, cluster)  # A broker may have lost the election a moment ago, and hear of it soon.
    await cluster.wait_healed(one, "V9", "brokers do not agree on one leader")
    watch.tell("on_settled", list(cluster.bundle_brokers.values()))
    await topics.unload_all(cluster)
    await topics.audit(cluster, watch)
    watch.tell("at_promises", list(cluster.bundle_brokers.values()))
    workload.stop_looking()


def _has_one_leader(cluster: BundleCluster) -> bool:
    return len(leaders(cluster.bundle_brokers.values())) == 1


async def _end_operator(cluster: BundleCluster) -> None:
    node = cluster.apps[OPERATOR]
    await cluster.wait_healed(lambda: node.is_done, "V2", "the operator does not end")
    await cluster.wait_exit(OPERATOR)


async def _inspect(cluster: BundleCluster, workload: BundleWorkload) -> None:
    """A client that had no part in the seed looks every topic up, and asks for the schemas."""

    async def look(client: PulsarClient) -> None:
        for topic in cluster.topic_options.topic_names:
            await (await client.producer(topic)).aclose()
        async with HttpClient(cluster.http_urls, seeded(f"{cluster.options.seed}/{_INSPECTOR}")) as http:
            try:
                await workload.operator.look_up_schemas(http)
            except MagnetarError as error:
                cluster.watch.violated("V2", f"the schemas cannot be read in a healed world: {error}")

    node = cluster.add_app(_INSPECTOR, look, options=topics.PATIENT)
    await cluster.wait_healed(partial(getattr, node, "is_done"), "V2", "topics cannot be looked up")
    await cluster.wait_exit(_INSPECTOR)


BUNDLES: Final = Scenario(
    name="bundles",
    world_seed="bundles/{}",
    faults=FAULTS,
    must_happen=(
        "receipts",
        "take-overs",
        "bundles that changed their owner",
        "ownerships that ended with their session",
        "bundles owned again",
        "bundles lost",
        "bundles unloaded",
        "bundles split",
        "brokers drained",
        "brokers that stopped by themselves",
        "balanced seeds",
        "sessions expired",
        "ledgers trimmed",
        "compactions begun",
        "delayed messages received",
        "received by Key_Shared",
        "policies changed",
        "schemas added",
        "topics deleted",
    ),
    invariants=ALL,
    events_max=3_000_000,
    draw=draw,
    watch=BundleWatch,
    cluster=BundleCluster,
    workload=BundleWorkload,
    nemesis=BundleNemesis,
    settle=settle,
    end=topics.end,
    observed=observed,
)
