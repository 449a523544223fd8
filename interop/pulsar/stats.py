"""Statistics, policies and metrics of one workload: what Pulsar's have, ours have, or the docs say why not.

Golden:    tests/golden/pulsar-stats.json has the names of all fields and series, taken from Apache Pulsar by these
           functions; on Apache the checks fail when it has one that is not in there.
Absent:    the tables of docs/admin-rest.md; `*` stands for anything.

    python -m interop.pulsar.stats     asks Apache Pulsar, and writes the golden file again
"""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import Iterable, Mapping
from fnmatch import fnmatch
from pathlib import Path
from typing import Any
from urllib.request import Request, urlopen

from interop.pulsar.apache import ApacheStandalone
from interop.pulsar.conftest import Server, open_server

ROOT = Path(__file__).resolve().parents[2]
GOLDEN = ROOT / "tests" / "golden" / "pulsar-stats.json"
DOCS = ROOT / "docs" / "admin-rest.md"
_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
_TIMEOUT_S = 30

Names = dict[str, list[str]]


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


async def _call(server: Server, path: str, method: str = "GET", body: Any = None) -> bytes:
    data = None if body is None else json.dumps(body).encode()
    request = Request(f"{server.standalone.admin_url}{path}", data, {"Content-Type": "application/json"}, method=method)

    def ask() -> bytes:
        with urlopen(request, timeout=_TIMEOUT_S) as answer:
            return bytes(answer.read())

    return await asyncio.to_thread(ask)


async def _get(server: Server, path: str) -> Any:
    return json.loads(await _call(server, path))


async def _use(server: Server, topic: str) -> None:
    """Publish, and consume with every type of subscription; the consumers stay."""
    for kind in _TYPES:
        await server.ask("subscribe", consumer=f"{topic} {kind}", topic=topic, name=kind, type=kind, subscription=kind)
    await server.ask("produce", topic=topic, count=10, keys=2)
    await server.ask("openProducer", producer=topic, topic=topic)
    for kind in _TYPES:
        await server.texts(f"{topic} {kind}", 5)


async def _leave(server: Server, topic: str) -> None:
    for kind in _TYPES:
        await server.ask("closeConsumer", consumer=f"{topic} {kind}")
    await server.ask("closeProducer", producer=topic)


async def collect_fields(server: Server) -> Names:
    topic = server.new_topic()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    await _use(server, topic)
    stats = await _get(server, f"{path}/stats?getPreciseBacklog=true&subscriptionBacklogSize=true")
    internal = await _get(server, f"{path}/internalStats?metadata=true")
    info = await _get(server, f"{path}/internal-info")
    await _leave(server, topic)
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
        "policies": sorted(await _get(server, "/admin/v2/namespaces/public/default")),
        **await _collect_fleeting(server),
        **await _collect_partitioned(server),
    }


async def _collect_fleeting(server: Server) -> Names:
    topic = server.new_topic().replace("persistent://", "non-persistent://")
    await server.ask("subscribe", consumer=topic, topic=topic)
    stats = await _get(server, f"/admin/v2/{topic.replace('://', '/')}/stats")
    await server.ask("closeConsumer", consumer=topic)
    return {
        "non-persistent topic": sorted(stats),
        "non-persistent subscription": _keys(stats["subscriptions"].values()),
    }


async def _collect_partitioned(server: Server) -> Names:
    topic = server.new_topic()
    path = f"/admin/v2/{topic.replace('://', '/')}"
    await _call(server, f"{path}/partitions", "PUT", 2)
    await _use(server, topic)
    stats = await _get(server, f"{path}/partitioned-stats")
    await _leave(server, topic)
    return {
        "partitioned topic": sorted(stats),
        "partitioned subscription": _keys(stats["subscriptions"].values()),
    }


def _keys(objects: Iterable[Mapping[str, Any]]) -> list[str]:
    return sorted({key for each in objects for key in each})


async def _use_rarely(server: Server, topic: str) -> None:
    """Pulsar has series of compaction and of deleted schemas once there was one."""
    await server.admin("topics", "compact", topic)
    await server.admin("topics", "compaction-status", topic, "--wait-complete")
    other = server.new_topic()
    await server.ask("schemaRoundTrip", kind="STRING", topic=other)
    await _call(server, f"/admin/v2/schemas/{other.partition('://')[2]}/schema", "DELETE")


async def collect_metrics(server: Server) -> list[str]:
    topic = server.new_topic()
    await _use(server, topic)
    await _use_rarely(server, topic)
    text = (await _call(server, "/metrics/")).decode()
    await _leave(server, topic)
    names = {line.partition("{")[0].partition(" ")[0] for line in text.splitlines() if line.startswith("pulsar_")}
    return sorted(name for name in names if not name.endswith("_created"))


async def _record() -> None:
    async with open_server(ApacheStandalone) as server:
        golden = await collect_fields(server) | {"metrics": await collect_metrics(server)}
    GOLDEN.write_text(json.dumps(golden, indent=1) + "\n")


if __name__ == "__main__":
    asyncio.run(_record())
