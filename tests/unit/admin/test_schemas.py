"""Schemas of topics."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.admin.admin_world import TOPIC, V2, admin_world

pytestmark = pytest.mark.virtual_time

SCHEMAS = f"{V2}/schemas/public/default/t"


def avro(kind: str) -> str:
    return json.dumps({"type": "record", "name": "R", "fields": [{"name": "a", "type": kind}]})


def given(kind: str = "int", **properties: str) -> dict[str, Any]:
    return {"type": "AVRO", "schema": avro(kind), "properties": properties}


async def test_a_schema_is_uploaded_found_and_deleted() -> None:
    async with admin_world() as world:
        assert (await world.get(f"{SCHEMAS}/schema")).status == 404
        assert (await world.call("POST", f"{SCHEMAS}/schema", given(p="q"))).json == {"version": {"version": 0}}
        found = (await world.get(f"{SCHEMAS}/schema")).json
        assert (found["version"], found["type"], found["data"], found["properties"]) == (
            0,
            "AVRO",
            avro("int"),
            {"p": "q"},
        )
        assert (await world.get(f"{SCHEMAS}/schema/0")).json == found
        assert (await world.get(f"{SCHEMAS}/schemas")).json == {"getSchemaResponses": [found]}
        assert (await world.call("POST", f"{SCHEMAS}/version", given(p="q"))).json == {"version": 0}
        assert (await world.get(f"{SCHEMAS}/metadata")).json["info"]["version"] == 0
        assert (await world.call("DELETE", f"{SCHEMAS}/schema")).json == {"version": 1}
        assert (await world.get(f"{SCHEMAS}/schema")).status == 404


async def test_a_schema_that_does_not_fit_is_refused() -> None:
    async with admin_world() as world:
        await world.done("POST", f"{SCHEMAS}/schema", given())
        assert (await world.call("POST", f"{SCHEMAS}/schema", given("string"))).status == 409
        tested = (await world.call("POST", f"{SCHEMAS}/compatibility", given("string"))).json
        assert tested == {"schemaCompatibilityStrategy": "FULL", "compatibility": False}
        assert (await world.call("POST", f"{SCHEMAS}/compatibility", given())).json["compatibility"] is True


REFUSED: list[tuple[Any, ...]] = [
    ({"type": "AVRO", "schema": "nonsense"}, 422),
    ({"type": "ODD", "schema": ""}, 422),
    ({"type": "AVRO", "schema": 1}, 400),
    ({"type": "KEY_VALUE", "schema": "[]"}, 422),
    ([], 400),
]


async def test_what_is_no_schema_is_refused() -> None:
    async with admin_world() as world:
        for body, status in REFUSED:
            assert (await world.call("POST", f"{SCHEMAS}/schema", body)).status == status, body


async def test_a_pair_is_shown_and_given_as_an_object_of_both() -> None:
    async with admin_world() as world:
        both = {"key": "", "value": json.loads(avro("int"))}
        body = {
            "type": "KEY_VALUE",
            "schema": json.dumps(both),
            "properties": {"key.schema.type": "STRING", "value.schema.type": "AVRO"},
        }
        await world.done("POST", f"{SCHEMAS}/schema", body)
        assert json.loads((await world.get(f"{SCHEMAS}/schema")).json["data"]) == both


async def test_a_deleted_topic_has_no_schema_any_more() -> None:
    async with admin_world() as world:
        await world.done("PUT", TOPIC)
        await world.done("POST", f"{SCHEMAS}/schema", given())
        await world.done("DELETE", TOPIC)
        assert (await world.get(f"{SCHEMAS}/schema")).status == 404
        assert (await world.get(f"{SCHEMAS}/metadata")).status == 404
