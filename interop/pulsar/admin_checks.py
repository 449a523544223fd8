"""pulsar-admin: tenants, namespaces, topics, subscriptions, schemas, stats."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from interop.runner import same
from magnetar.errors import ProcessFailedError

if TYPE_CHECKING:
    from interop.pulsar.part import Pulsar


def _lines(text: str) -> list[str]:
    return sorted(line.strip().strip('"') for line in text.splitlines() if line.strip())


async def tenants_are_created_listed_and_deleted(p: Pulsar) -> None:
    await p.admin("tenants", "create", "acme", "--allowed-clusters", "standalone")
    same("listed", "acme" in _lines(await p.admin("tenants", "list")), True)
    same("clusters", (await p.admin_json("tenants", "get", "acme"))["allowedClusters"], ["standalone"])
    await p.admin("tenants", "delete", "acme")
    same("gone", "acme" in _lines(await p.admin("tenants", "list")), False)


async def namespaces_have_policies(p: Pulsar) -> None:
    name = "public/interop-policies"
    await p.admin("namespaces", "create", name)
    await p.admin("namespaces", "set-retention", name, "--size", "10M", "--time", "3h")
    await p.admin("namespaces", "set-message-ttl", name, "--messageTTL", "100")
    await p.admin("namespaces", "set-deduplication", name, "--enable")
    same(
        "retention",
        await p.admin_json("namespaces", "get-retention", name),
        {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10},
    )
    policies = await p.admin_json("namespaces", "policies", name)
    same("ttl", policies["message_ttl_in_seconds"], 100)
    same("dedup", policies["deduplicationEnabled"], True)
    await p.admin("namespaces", "delete", name)


async def topics_are_created_listed_and_deleted(p: Pulsar) -> None:
    namespace = "public/interop-topics"
    await p.admin("namespaces", "create", namespace)
    await p.admin("topics", "create", f"{namespace}/one")
    await p.admin("topics", "create-partitioned-topic", f"{namespace}/many", "--partitions", "2")
    same(
        "topics",
        _lines(await p.admin("topics", "list", namespace)),
        sorted(f"persistent://{namespace}/{name}" for name in ("one", "many-partition-0", "many-partition-1")),
    )
    await p.admin("topics", "update-partitioned-topic", f"{namespace}/many", "--partitions", "3")
    metadata = await p.admin_json("topics", "get-partitioned-topic-metadata", f"{namespace}/many")
    same("partitions", metadata["partitions"], 3)
    await p.admin("topics", "delete", f"{namespace}/one")
    await p.admin("topics", "delete-partitioned-topic", f"{namespace}/many")
    same("topics", _lines(await p.admin("topics", "list", namespace)), [])


async def subscriptions_are_peeked_skipped_and_reset(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.admin("topics", "create-subscription", topic, "--subscription", "s")
    await p.ask("produce", topic=topic, count=10)
    same("peeked", "m-0" in await p.admin("topics", "peek-messages", topic, "-s", "s", "-n", "1"), True)
    await p.admin("topics", "skip", topic, "-s", "s", "-n", "4")
    same("backlog", (await p.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 6)
    await p.admin("topics", "clear-backlog", topic, "-s", "s")
    same("backlog", (await p.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 0)
    await p.admin("topics", "reset-cursor", topic, "-s", "s", "--time", "1h")
    same("backlog", (await p.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 10)
    await p.admin("topics", "unsubscribe", topic, "-s", "s")
    same("subscriptions", _lines(await p.admin("topics", "subscriptions", topic)), [])


async def schemas_are_uploaded_and_deleted(p: Pulsar) -> None:
    topic = p.new_topic()
    avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    file = p.directory / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(avro), "properties": {}}))
    await p.admin("schemas", "upload", topic, "--filename", str(file))
    same("type", (await p.admin_json("schemas", "get", topic))["schemaInfo"]["type"], "AVRO")
    await p.admin("schemas", "delete", topic)
    try:
        await p.admin("schemas", "get", topic)
    except ProcessFailedError:
        return
    raise AssertionError("a deleted schema is still there")


async def a_topic_is_unloaded_terminated_and_compacted(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("produce", topic=topic, count=6, keys=2)
    await p.admin("topics", "unload", topic)
    await p.admin("topics", "compact", topic)
    await p.admin("topics", "compaction-status", topic, "--wait-complete")
    found = await p.ask("read", topic=topic, compacted=True)
    same("compacted", [message["text"] for message in found], ["m-4", "m-5"])
    await p.admin("topics", "terminate", topic)


async def internal_stats_name_the_ledgers(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("produce", topic=topic, count=3)
    stats = await p.admin_json("topics", "stats-internal", topic)
    same("entries", stats["numberOfEntries"], 3)
    same("state", stats["state"], "LedgerOpened")
    same("ledgers", len(stats["ledgers"]) >= 1, True)


async def the_cluster_and_its_broker_are_known(p: Pulsar) -> None:
    same("clusters", _lines(await p.admin("clusters", "list")), ["standalone"])
    await p.admin("brokers", "healthcheck")
    same("brokers", len(_lines(await p.admin("brokers", "list", "standalone"))), 1)


CHECKS = [
    tenants_are_created_listed_and_deleted,
    namespaces_have_policies,
    topics_are_created_listed_and_deleted,
    subscriptions_are_peeked_skipped_and_reset,
    schemas_are_uploaded_and_deleted,
    a_topic_is_unloaded_terminated_and_compacted,
    internal_stats_name_the_ledgers,
    the_cluster_and_its_broker_are_known,
]
