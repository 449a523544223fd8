"""Schemas of the Java client: each kind comes back as what it was, and is stored under its name."""

from __future__ import annotations

from typing import Any

import pytest

from interop.comparing import same
from interop.pulsar.conftest import Server

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


@pytest.mark.parametrize(("kind", "expected"), KINDS.items(), ids=KINDS)
async def test_a_value_of_the_schema_comes_back(server: Server, kind: str, expected: Any) -> None:
    topic = server.new_topic()
    same("value", await server.ask("schemaRoundTrip", kind=kind, topic=topic), expected)
    stored = await server.admin_json("schemas", "get", topic)
    same("stored", stored["schemaInfo"]["type"] if "schemaInfo" in stored else stored["type"], kind)


async def test_a_consumer_finds_the_schema_out_by_itself(server: Server) -> None:
    topic = server.new_topic()
    await server.ask("schemaRoundTrip", kind="AVRO", topic=topic)
    same("name", await server.ask("schemaRoundTrip", kind="AUTO_CONSUME", topic=topic), "Ada")
