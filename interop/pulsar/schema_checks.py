"""Schemas of the Java client: each kind comes back as what it was, and is stored under its name."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable
from typing import TYPE_CHECKING, Any

from interop.runner import same

if TYPE_CHECKING:
    from interop.pulsar.part import Pulsar

KINDS: dict[str, Any] = {
    "AVRO": "Ada",
    "JSON": "Ada",
    "INT32": 42,
    "INT64": 1 << 40,
    "DOUBLE": 2.5,
    "BOOLEAN": True,
    "STRING": "text",
    "KEY_VALUE": "key=Ada",
}


async def _comes_back(kind: str, expected: Any, p: Pulsar) -> None:
    topic = p.new_topic()
    same("value", await p.ask("schemaRoundTrip", kind=kind, topic=topic), expected)
    stored = await p.admin_json("schemas", "get", topic)
    same("stored", stored["schemaInfo"]["type"] if "schemaInfo" in stored else stored["type"], kind)


def _check(kind: str, expected: Any) -> Callable[[Pulsar], Awaitable[None]]:
    check = functools.partial(_comes_back, kind, expected)

    async def run(p: Pulsar) -> None:
        await check(p)

    run.__name__ = f"a_value_of_the_schema_{kind}_comes_back"
    return run


async def a_consumer_finds_the_schema_out_by_itself(p: Pulsar) -> None:
    topic = p.new_topic()
    await p.ask("schemaRoundTrip", kind="AVRO", topic=topic)
    same("name", await p.ask("schemaRoundTrip", kind="AUTO_CONSUME", topic=topic), "Ada")


CHECKS = [*(_check(kind, expected) for kind, expected in KINDS.items()), a_consumer_finds_the_schema_out_by_itself]
