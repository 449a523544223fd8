"""Statistics, policies and metrics of one workload: what Pulsar's have, ours have, or the docs say why not.

Golden:    tests/golden/pulsar-stats.json has the names of all fields and series, taken from Apache Pulsar by these
           checks; on Apache they fail when it has one that is not in there.
Absent:    the tables of docs/admin-rest.md; `*` stands for anything.

    python -m interop.pulsar.stats_checks     asks Apache Pulsar, and writes the golden file again
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.request import Request, urlopen

from interop.pulsar.apache import ApacheStandalone
from interop.runner import same

if TYPE_CHECKING:
    from interop.pulsar.part import Pulsar

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pulsar-stats.json"
DOCS = ROOT / "docs" / "admin-rest.md"
_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
_TIMEOUT_S = 30

Names = dict[str, list[str]]


async def statistics_have_the_fields_that_pulsars_have(p: Pulsar) -> None:
    _compare(p, await collect_fields(p))


async def metrics_have_the_names_that_pulsars_have(p: Pulsar) -> None:
    _compare(p, {"metrics": await collect_metrics(p)})


def _compare(p: Pulsar, found: Names) -> None:
    for kind, names in found.items():
        golden = json.loads(GOLDEN.read_text())[kind]
        if isinstance(p.server, ApacheStandalone):
            same(f"{kind} that the golden file lacks", sorted(set(names) - set(golden)), [])
        else:
            same(f"{kind} that ours lack", missing(kind, names, golden), [])


def missing(kind: str, names: Iterable[str], golden: Iterable[str]) -> list[str]:
    absent = absent_names(kind)
    found = set(names)
    return sorted(name for name in golden if name not in found and not any(fnmatch(name, each) for each in absent))


def absent_names(kind: str) -> list[str]:
    """From the table of the docs below the heading `Absent: KIND`."""
    text = DOCS.read_text()
    section = re.search(rf"^### Absent: {re.escape(kind)}$(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL)
    return [] if section is None else re.findall(r"^\| `([^`]+)` \|", section[1], re.MULTILINE)


# --- the workload -----------------------------------------------------------------------------------------------------


async def _call(p: Pulsar, path: str, method: str = "GET", body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{p.server.admin_url}{path}", data, {"Content-Type": "application/json"}, method=method)

    def ask() -> bytes:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(ask)


async def _get(p: Pulsar, path: str) -> Any:
    return json.loads(await _call(p, path))


async def _use(p: Pulsar, topic: str) -> None:
    """Publish, and consume with every type of subscription; the consumers stay."""
    for kind in _TYPES:
        await p.ask("subscribe", consumer=f"{topic} {kind}", topic=topic, name=kind, type=kind, subscription=kind)
    await p.ask("produce", topic=topic, count=10, keys=2)
    await p.ask("openProducer", producer=topic, topic=topic)
    for kind in _TYPES:
        await p.texts(f"{topic} {kind}", 5)


async def _leave(p: Pulsar, topic: str) -> None:
    for kind in _TYPES:
        await p.ask("closeConsumer", consumer=f"{topic} {kind}")
    await p.ask("closeProducer", producer=topic)


async def collect_fields(p: Pulsar) -> Names:
    topic = p.new_topic()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    await _use(p, topic)
    stats = await _get(p, f"{path}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true")
    internal = await _get(p, f"{path}/internalStats?metadata=true")
    info = await _get(p, f"{path}/internal-info")
    await _leave(p, topic)
    subscriptions = list(stats["subscriptions"].values())
    return {
        "topic": sorted(stats),
        "compaction": sorted(stats["compaction"]),
        "publisher": _keys(stats["publishers"]),
        "subscription": _keys(subscriptions),
        "consumer": _keys(consumer for each in subscriptions for consumer in each["consumers"]),
        "internal": sorted(internal),
        "ledger": _keys(internal["ledgers"]),
        "cursor": _keys(internal["cursors"].values()),
        "info": sorted(info),
        "policies": sorted(await _get(p, "/admin/v2/namespaces/public/default")),
        **await _collect_fleeting(p),
        **await _collect_partitioned(p),
    }


async def _collect_fleeting(p: Pulsar) -> Names:
    topic = p.new_topic().replace("persistent://", "non-persistent://")
    await p.ask("subscribe", consumer=topic, topic=topic)
    stats = await _get(p, f"/admin/v2/{topic.replace('://', '/')}/stats")
    await p.ask("closeConsumer", consumer=topic)
    return {
        "non-persistent topic": sorted(stats),
        "non-persistent subscription": _keys(stats["subscriptions"].values()),
    }


async def _collect_partitioned(p: Pulsar) -> Names:
    topic = p.new_topic()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    await _call(p, f"{path}/partitions", "PUT", 2)
    await _use(p, topic)
    stats = await _get(p, f"{path}/partitioned-stats")
    await _leave(p, topic)
    return {
        "partitioned topic": sorted(stats),
        "partitioned subscription": _keys(stats["subscriptions"].values()),
    }


def _keys(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({key for each in objects for key in each})


async def _use_rarely(p: Pulsar, topic: str) -> None:
    """Pulsar has series of compaction and of deleted schemas once there was one."""
    await p.admin("topics", "compact", topic)
    await p.admin("topics", "compaction-status", topic, "--wait-complete")
    other = p.new_topic()
    await p.ask("schemaRoundTrip", kind="STRING", topic=other)
    await _call(p, f"/admin/v2/schemas/{other.partition('://')[2]}/schema", "DELETE")


async def collect_metrics(p: Pulsar) -> list[str]:
    topic = p.new_topic()
    await _use(p, topic)
    await _use_rarely(p, topic)
    text = (await _call(p, "/metrics/")).decode()
    await _leave(p, topic)
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line.startswith("pulsar_")}
    return sorted(name for name in names if not name.endswith("_created"))


CHECKS = [statistics_have_the_fields_that_pulsars_have, metrics_have_the_names_that_pulsars_have]


async def _record() -> None:
    from interop.pulsar.part import open_server

    async with open_server(ApacheStandalone) as p:
        golden = await collect_fields(p) | {"metrics": await collect_metrics(p)}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(_record())
