"""/admin/v2/schemas: the schemas of topics."""

from __future__ import annotations

import json
import struct
from typing import Any

from magnetar.admin.http.call import TOPIC, Call, Query, Route, read_json
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, UNPROCESSABLE, RestError
from magnetar.errors import IncompatibleSchemaError, InvalidSchemaError
from magnetar.schemas.compatibility import CompatibilityStrategy
from magnetar.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.schemas.proto.schema_storage_pb2 import IndexEntry, SchemaLocator
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.storage import schema_path
from magnetar.schemas.validation import split_key_value

_LENGTH = struct.Struct(">i")


def _registry(call: Call) -> SchemaRegistry:
    return call.service.schemas.registry


async def _name(call: Call) -> str:
    await call.service.require_namespace(call.namespace)
    return call.topic.schema_name


def _json(stored: StoredSchema) -> dict[str, Any]:
    schema = stored.schema
    return {
        "version": stored.version,
        "type": schema.type.name,
        "timestamp": schema.timestamp_ms,
        "data": _shown(schema),
        "properties": dict(schema.properties),
    }


def _shown(schema: SchemaData) -> str:
    """Returns the definition; for a pair, an object with both definitions."""
    if schema.type is not SchemaType.KEY_VALUE:
        return schema.data.decode("utf-8", "replace")
    key, value = split_key_value(schema)
    return json.dumps({"key": _part(key), "value": _part(value)}, separators=(",", ":"))


def _part(schema: SchemaData) -> Any:
    try:
        return read_json(schema.data) if schema.data else ""
    except ValueError:  # A client may have sent anything.
        return schema.data.decode("utf-8", "replace")


def _found(stored: StoredSchema | None) -> StoredSchema:
    if stored is None:
        raise RestError(NOT_FOUND, "Schema not found")
    return stored


async def get_latest(call: Call) -> dict[str, Any]:
    return _json(_found(await _registry(call).latest(await _name(call))))


async def get_version(call: Call) -> dict[str, Any]:
    return _json(_found(await _registry(call).version(await _name(call), call.number("version"))))


async def get_all(call: Call) -> dict[str, Any]:
    return {"getSchemaResponses": [_json(each) for each in await _registry(call).all(await _name(call))]}


async def get_metadata(call: Call) -> dict[str, Any]:
    node = await call.service.resources.cache.get(schema_path(await _name(call)))
    if node is None or not node.value:
        raise RestError(NOT_FOUND, "Schema not found")
    locator = SchemaLocator.FromString(node.value)
    return {"info": _place(locator.info), "index": [_place(each) for each in locator.index]}


def _place(entry: IndexEntry) -> dict[str, int]:
    return {"ledgerId": entry.position.ledgerId, "entryId": entry.position.entryId, "version": entry.version}


async def delete(call: Call) -> dict[str, Any]:
    name = await _name(call)
    if call.flag("force"):
        latest = await _registry(call).latest(name)
        await _registry(call).delete_with_history(name)
        return {"version": -1 if latest is None else latest.version}
    version = await _registry(call).delete(name)
    if version is None:
        raise RestError(NOT_FOUND, "Schema not found")
    return {"version": version}


async def upload(call: Call) -> dict[str, Any]:
    schema = _given(call)
    stored = await _registry(call).add(await _name(call), schema, await _strategy(call))
    return {"version": {"version": stored.version}}


async def test_compatibility(call: Call) -> dict[str, Any]:
    strategy = await _strategy(call)
    try:
        await _registry(call).check(await _name(call), _given(call), strategy)
    except (IncompatibleSchemaError, InvalidSchemaError):
        return {"schemaCompatibilityStrategy": str(strategy), "compatibility": False}
    return {"schemaCompatibilityStrategy": str(strategy), "compatibility": True}


async def find_version(call: Call) -> dict[str, Any]:
    return {"version": _found(await _registry(call).find(await _name(call), _given(call))).version}


async def _strategy(call: Call) -> CompatibilityStrategy:
    await call.service.require_namespace(call.namespace)
    await call.service.policies.load(call.topic)
    return call.service.policies.effective(call.topic).schema_compatibility


def _given(call: Call) -> SchemaData:
    body = call.json_object()
    name, text, properties = body.get("type"), body.get("schema") or "", body.get("properties") or {}
    if not isinstance(name, str) or name not in SchemaType.__members__:
        raise RestError(UNPROCESSABLE, f"{name!r} is not a type of schemas")
    if not isinstance(text, str) or not isinstance(properties, dict):
        raise RestError(BAD_REQUEST, "schema must be a string, and properties an object of strings")
    kind = SchemaType[name]
    data = _key_value(text) if kind is SchemaType.KEY_VALUE else text.encode()
    return SchemaData(kind, data, {str(key): str(value) for key, value in properties.items()})


def _key_value(text: str) -> bytes:
    """Converts an object with both definitions to what clients send."""
    try:
        both = read_json(text)
        parts = [both["key"], both["value"]]
    except (ValueError, KeyError, TypeError):
        raise RestError(UNPROCESSABLE, "the schema of a pair is an object with key and value") from None
    encoded = [_definition(part) for part in parts]
    return b"".join(_LENGTH.pack(len(part)) + part for part in encoded)


def _definition(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part, separators=(",", ":")).encode()


_ONE = f"/admin/v2/schemas/{TOPIC}"
_BODY = "type, schema, properties"
_FORCE = (Query("force", "with all its versions"),)
ROUTES = [
    Route("GET", f"{_ONE}/schema", "Get the newest schema of a topic", get_latest),
    Route("GET", f"{_ONE}/schema/{{version}}", "Get a version of a topic's schema", get_version),
    Route("GET", f"{_ONE}/schemas", "Get all versions of a topic's schema", get_all),
    Route("GET", f"{_ONE}/metadata", "Get the positions of a topic's schemas", get_metadata),
    Route("POST", f"{_ONE}/schema", "Add a schema to a topic", upload, body=_BODY),
    Route("DELETE", f"{_ONE}/schema", "Delete a topic's schema", delete, query=_FORCE),
    Route("POST", f"{_ONE}/compatibility", "Test whether a schema could be added", test_compatibility, body=_BODY),
    Route("POST", f"{_ONE}/version", "Get the version of a schema", find_version, body=_BODY),
]
