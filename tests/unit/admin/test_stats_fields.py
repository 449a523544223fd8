"""Ours against the names of fields and series that Apache Pulsar has (tests/golden/pulsar-stats.json)."""

from __future__ import annotations

import json
from fnmatch import fnmatch
from typing import Any

import pytest

from interop.pulsar.stats import GOLDEN, absent_names, missing
from magnetar.admin.stats.broker import SUBSCRIPTION_SERIES, TOPIC_SERIES
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CommandSubscribe
from tests.unit.admin.admin_world import TOPIC, V2, admin_world

pytestmark = pytest.mark.virtual_time

KINDS = (
    CommandSubscribe.Exclusive,
    CommandSubscribe.Shared,
    CommandSubscribe.Failover,
    CommandSubscribe.Key_Shared,
)


def lacking(kind: str, *objects: Any) -> list[str]:
    return missing(kind, {key for each in objects for key in each}, json.loads(GOLDEN.read_text())[kind])


async def test_statistics_lack_nothing_that_the_docs_do_not_say() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.producer("t")
        for number, kind in enumerate(KINDS):
            await talker.subscribe("t", f"s{number}", consumer_id=number, kind=kind)
        await talker.published(1, 0, b"x")
        stats = (await world.get(f"{TOPIC}/stats")).json
        internal = (await world.get(f"{TOPIC}/internalStats?metadata=true")).json
        subscriptions = list(stats["subscriptions"].values())
        consumers = [consumer for each in subscriptions for consumer in each["consumers"]]
        assert lacking("topic", stats) == []
        assert lacking("compaction", stats["compaction"]) == []
        assert lacking("publisher", *stats["publishers"]) == []
        assert lacking("subscription", *subscriptions) == []
        assert lacking("consumer", *consumers) == []
        assert lacking("internal", internal) == []
        assert lacking("ledger", *internal["ledgers"]) == []
        assert lacking("cursor", *internal["cursors"].values()) == []
        assert lacking("info", (await world.get(f"{TOPIC}/internal-info")).json) == []
        assert lacking("policies", (await world.get(f"{V2}/namespaces/public/default")).json) == []


async def test_statistics_of_other_kinds_of_topics_lack_nothing_either() -> None:
    async with admin_world() as world:
        talker = await world.talker()
        await talker.subscribe("non-persistent://public/default/np")
        await world.done("PUT", f"{V2}/persistent/public/default/many/partitions", 1)
        await talker.subscribe("many-partition-0", consumer_id=2)
        fleeting = (await world.get(f"{V2}/non-persistent/public/default/np/stats")).json
        merged = (await world.get(f"{V2}/persistent/public/default/many/partitioned-stats")).json
        assert lacking("non-persistent topic", fleeting) == []
        assert lacking("non-persistent subscription", fleeting["subscriptions"]["s"]) == []
        assert lacking("partitioned topic", merged) == []
        assert lacking("partitioned subscription", merged["subscriptions"]["s"]) == []


async def test_metrics_lack_nothing_that_the_docs_do_not_say() -> None:
    async with admin_world() as world:
        await world.done("PUT", f"{TOPIC}/subscription/s")
        text = (await world.get("/metrics")).body.decode()
        names = {line.partition("{")[0] for line in text.splitlines() if line.startswith("pulsar_")}
        assert lacking("metrics", names) == []
        assert {*TOPIC_SERIES, *SUBSCRIPTION_SERIES} <= names


def test_what_the_docs_call_absent_is_pulsars_and_not_ours() -> None:
    golden, ours = json.loads(GOLDEN.read_text())["metrics"], [*TOPIC_SERIES, *SUBSCRIPTION_SERIES]
    for pattern in absent_names("metrics"):
        assert any(fnmatch(name, pattern) for name in golden), pattern
        assert not any(fnmatch(name, pattern) for name in ours), pattern
