"""The topics of a write: whether they exist, their partitions, their schema, and whether repeats are dropped.

Order:     a missing topic is made as by a producer: through the broker's own producer path, which obeys the namespace's
           policies. If that is refused, the error says how to make it. The schema is registered with the topic, as a
           producer registers it; the same one again gets the same version.
Invariant: deduplication is looked up, never switched on: it changes the topic for every producer, and costs the broker
           memory.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any, Final

from magnetar.client.client import PulsarClient
from magnetar.client.http import HttpClient, json_of, succeeded
from magnetar.client.topics import partition_name
from magnetar.client.values import ProducerOptions
from magnetar.errors import ConfigError, HttpRefusedError, TopicNotFoundError, TopicTerminatedError
from magnetar.names import TopicName
from magnetar.runtime.system import SystemEntropy
from magnetar.schemas.data import version_to_bytes
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster
from magnetar.spark.encoding.routing import Target
from magnetar.spark.loop_thread import run
from magnetar.spark.writing.plan import Delivery, WritePlan, full_topic

_NOT_FOUND: Final = 404
_REQUEST_S: Final = 30.0
_NO_LEDGERS: Final = 2**62  # No ledger has a higher id, so the list of a topic's ledgers is empty.
_FIND_S: Final = 120.0
_FRESH_S: Final = 10.0  # Then new partitions are used. A micro-batch makes two writers, and the next follows at once.

_found: dict[tuple[ClusterOptions, str, str, Delivery], tuple[Target, float]] = {}
"""The targets of this process, with the time of their lookup; touched on the loop's thread only."""


def look_up(plan: WritePlan, name: str) -> Target:
    """Calls `find_target` from any thread but the loop's own."""
    return run(find_target(cluster(plan.options.cluster), plan, name), _FIND_S)


async def find_target(cluster: Cluster, plan: WritePlan, name: str) -> Target:
    """Returns the target for a topic as the user wrote it. A recent answer is used again."""
    topic = full_topic(name)
    key = (cluster.options, topic, plan.definition, plan.options.delivery)
    now_s = asyncio.get_running_loop().time()
    for old in [old for old, (_, since_s) in _found.items() if now_s > since_s + _FRESH_S]:
        del _found[old]
    if key not in _found:
        _found[key] = await _find(cluster, plan, topic), now_s
    return _found[key][0]


async def _find(cluster: Cluster, plan: WritePlan, topic: str) -> Target:
    partitions = await _partitions(cluster, topic)
    await _require_open(cluster, partition_name(topic, 0) if partitions else topic)
    if plan.options.delivery is Delivery.DEDUP:
        await _require_dedup(cluster.http, topic)
    version = await _register(cluster.http, topic, plan) if plan.definition else b""
    return Target(topic, partitions, version)


async def _partitions(cluster: Cluster, topic: str) -> int:
    try:
        found = await cluster.http.get_json(f"/admin/v2/{topic_path(topic)}/partitions")
    except HttpRefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        return await _make(cluster, topic, error)
    return int(found["partitions"])


async def _require_open(cluster: Cluster, part: str) -> None:
    """Checks before any task runs: the commit of rows for a terminated topic could only fail. A partitioned topic is
    terminated as a whole, so its first partition stands for all."""
    try:
        is_terminated = (await cluster.segments(part, from_ledger=_NO_LEDGERS)).terminated
    except TopicNotFoundError:  # A partition that was never used is made by the commit.
        return
    if is_terminated:
        raise TopicTerminatedError(f"{part} is terminated: it takes no more messages. Write to another topic")


async def _make(cluster: Cluster, topic: str, missing: HttpRefusedError) -> int:
    async with PulsarClient(cluster.options.service_url, SystemEntropy()) as client:
        try:
            partitions = await client.partitions_of(topic, create=True)
            producer = await client.producer(topic, ProducerOptions())
        except TopicNotFoundError:
            raise TopicNotFoundError(
                f"{missing}: make it with `magnetar topics create {topic}`, or let the namespace make topics when they "
                "are used"
            ) from None
        await producer.aclose()
    return partitions


async def _register(http: HttpClient, topic: str, plan: WritePlan) -> bytes:
    kind = plan.options.schema.name
    body = json.dumps({"type": kind, "schema": plan.definition, "properties": {}}).encode()
    path = f"/admin/v2/schemas/{topic_path(topic).removeprefix('persistent/')}/schema"
    try:
        answer = succeeded(await http.request("POST", path, body=body, timeout_s=_REQUEST_S))
    except HttpRefusedError as error:
        raise ConfigError(
            f"the columns as {kind} schema are refused by {topic}: {error}. Change the columns to fit the topic's "
            "schema, or the compatibility policy of its namespace"
        ) from None
    stored: Any = json_of(answer)
    return version_to_bytes(int(stored["version"]["version"]))


async def _require_dedup(http: HttpClient, topic: str) -> None:
    if await http.get_json(f"/admin/v2/{topic_path(topic)}/deduplicationEnabled", {"applied": True}):
        return
    raise ConfigError(
        f"delivery=dedup needs deduplication, which is off on {topic}: switch it on for its namespace with `magnetar "
        "namespaces set-deduplication`, or for the topic (policy deduplicationEnabled); or use delivery=exactly-once"
    )


def topic_path(topic: str) -> str:
    """Returns `persistent/tenant/namespace/name`, as the admin interface writes it."""
    return TopicName.parse(topic).rest_path
