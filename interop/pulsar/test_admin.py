"""pulsar-admin: tenants, namespaces, topics, subscriptions, schemas, stats."""

from __future__ import annotations

import json

from interop.comparing import same
from interop.pulsar.conftest import Server
from magnetar.errors import ProcessFailedError


def _lines(text: str) -> list[str]:
    return sorted(line.strip().strip('"') for line in text.splitlines() if line.strip())


async def test_tenants_are_created_listed_and_deleted(server: Server) -> None:
    await server.admin("tenants", "create", "acme", "--allowed-clusters", "standalone")
    same("listed", "acme" in _lines(await server.admin("tenants", "list")), True)
    same("clusters", (await server.admin_json("tenants", "get", "acme"))["allowedClusters"], ["standalone"])
    await server.admin("tenants", "delete", "acme")
    same("gone", "acme" in _lines(await server.admin("tenants", "list")), False)


async def test_namespaces_have_policies(server: Server) -> None:
    name = "public/interop-policies"
    await server.admin("namespaces", "create", name)
    await server.admin("namespaces", "set-retention", name, "--size", "10M", "--time", "3h")
    await server.admin("namespaces", "set-message-ttl", name, "--messageTTL", "100")
    await server.admin("namespaces", "set-deduplication", name, "--enable")
    same(
        "retention",
        await server.admin_json("namespaces", "get-retention", name),
        {"retentionTimeInMinutes": 180, "retentionSizeInMB": 10},
    )
    policies = await server.admin_json("namespaces", "policies", name)
    same("ttl", policies["message_ttl_in_seconds"], 100)
    same("dedup", policies["deduplicationEnabled"], True)
    await server.admin("namespaces", "delete", name)


async def test_topics_are_created_listed_and_deleted(server: Server) -> None:
    namespace = "public/interop-topics"
    await server.admin("namespaces", "create", namespace)
    await server.admin("topics", "create", f"{namespace}/one")
    await server.admin("topics", "create-partitioned-topic", f"{namespace}/many", "--partitions", "2")
    same(
        "topics",
        _lines(await server.admin("topics", "list", namespace)),
        sorted(f"persistent://{namespace}/{name}" for name in ("one", "many-partition-0", "many-partition-1")),
    )
    await server.admin("topics", "update-partitioned-topic", f"{namespace}/many", "--partitions", "3")
    metadata = await server.admin_json("topics", "get-partitioned-topic-metadata", f"{namespace}/many")
    same("partitions", metadata["partitions"], 3)
    await server.admin("topics", "delete", f"{namespace}/one")
    await server.admin("topics", "delete-partitioned-topic", f"{namespace}/many")
    same("topics", _lines(await server.admin("topics", "list", namespace)), [])


async def test_subscriptions_are_peeked_skipped_and_reset(server: Server) -> None:
    topic = server.new_topic()
    await server.admin("topics", "create-subscription", topic, "--subscription", "s")
    await server.ask("produce", topic=topic, count=10)
    same("peeked", "m-0" in await server.admin("topics", "peek-messages", topic, "-s", "s", "-n", "1"), True)
    await server.admin("topics", "skip", topic, "-s", "s", "-n", "4")
    same("backlog", (await server.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 6)
    await server.admin("topics", "clear-backlog", topic, "-s", "s")
    same("backlog", (await server.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 0)
    await server.admin("topics", "reset-cursor", topic, "-s", "s", "--time", "1h")
    same("backlog", (await server.admin_json("topics", "stats", topic))["subscriptions"]["s"]["msgBacklog"], 10)
    await server.admin("topics", "unsubscribe", topic, "-s", "s")
    same("subscriptions", _lines(await server.admin("topics", "subscriptions", topic)), [])


async def test_schemas_are_uploaded_and_deleted(server: Server) -> None:
    topic = server.new_topic()
    avro = {"type": "record", "name": "R", "fields": [{"name": "a", "type": "int"}]}
    file = server.directory / "schema.json"
    file.write_text(json.dumps({"type": "AVRO", "schema": json.dumps(avro), "properties": {}}))
    await server.admin("schemas", "upload", topic, "--filename", str(file))
    same("type", (await server.admin_json("schemas", "get", topic))["schemaInfo"]["type"], "AVRO")
    await server.admin("schemas", "delete", topic)
    try:
        await server.admin("schemas", "get", topic)
    except ProcessFailedError:
        return
    raise AssertionError("a deleted schema is still there")


async def test_a_topic_is_unloaded_terminated_and_compacted(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("produce", topic=topic, count=6, keys=2)
    await server.admin("topics", "unload", topic)
    await server.admin("topics", "compact", topic)
    await server.admin("topics", "compaction-status", topic, "--wait-complete")
    found = await server.ask("read", topic=topic, compacted=True)
    same("compacted", [message["text"] for message in found], ["m-4", "m-5"])
    await server.admin("topics", "terminate", topic)


async def test_internal_stats_name_the_ledgers(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("produce", topic=topic, count=3)
    stats = await server.admin_json("topics", "stats-internal", topic)
    same("entries", stats["numberOfEntries"], 3)
    same("state", stats["state"], "LedgerOpened")
    same("ledgers", len(stats["ledgers"]) >= 1, True)


async def test_the_cluster_and_its_broker_are_known(server: Server) -> None:
    same("clusters", _lines(await server.admin("clusters", "list")), ["standalone"])
    await server.admin("brokers", "healthcheck")
    same("brokers", len(_lines(await server.admin("brokers", "list", "standalone"))), 1)
