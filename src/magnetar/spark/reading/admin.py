"""What a read asks of the broker's HTTP port beyond topics and ledgers (cluster.py): schemas, subscriptions."""

from __future__ import annotations

import json
import struct
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import quote

from magnetar.broker.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.client.http import succeeded
from magnetar.errors import HttpRefusedError, InvalidSchemaError, SchemaMissingError
from magnetar.spark.reading.spots import Spot

if TYPE_CHECKING:
    from magnetar.client.http import HttpClient

_DOMAIN: Final = "persistent://"
_CONFLICT: Final = 409
_NOT_FOUND: Final = 404
_TIMEOUT_S: Final = 30.0
_LENGTH = struct.Struct(">i")


class TopicAdmin:
    """Lives on the loop's thread."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    # --- schemas ------------------------------------------------------------------------------------------------------

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaData:
        """The newest one, or that version. SchemaMissingError."""
        path = f"/admin/v2/schemas/{quote(topic.removeprefix(_DOMAIN))}/schema"
        if version is not None:
            path = f"{path}/{version_from_bytes(version)}"
        try:
            found = await self._http.get_json(path, patience_s=_TIMEOUT_S)
        except HttpRefusedError as error:
            if error.status != _NOT_FOUND:
                raise
            what = "no schema" if version is None else f"no version {version_from_bytes(version)} of its schema"
            raise SchemaMissingError(f"{topic} has {what}: read it with valueSchema=raw, or register one") from None
        return schema_from_json(found)

    async def schemas(self, topic: str) -> list[SchemaData]:
        """All versions, the newest first."""
        path = f"/admin/v2/schemas/{quote(topic.removeprefix(_DOMAIN))}/schemas"
        found = await self._http.get_json(path, patience_s=_TIMEOUT_S)
        versions = sorted(found["getSchemaResponses"], key=lambda each: int(each["version"]), reverse=True)
        return [schema_from_json(each) for each in versions]

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def place_subscription(self, part: str, name: str, spot: Spot) -> None:
        """Makes it, or moves it, so that this message is the first that it has not acknowledged."""
        body = json.dumps(_message_id(spot)).encode()
        path = f"{topic_path(part)}/subscription/{quote(name, safe='')}"
        answer = await self._http.request("PUT", path, body=body, timeout_s=_TIMEOUT_S)
        if answer.status != _CONFLICT and not spot.skipped:
            succeeded(answer)
            return
        await self.move_subscription(part, name, spot)

    async def move_subscription(self, part: str, name: str, spot: Spot) -> None:
        path = f"{topic_path(part)}/subscription/{quote(name, safe='')}/resetcursor"
        body = json.dumps(_message_id(spot)).encode()
        succeeded(await self._http.request("POST", path, body=body, timeout_s=_TIMEOUT_S))


def topic_path(part: str) -> str:
    return f"/admin/v2/persistent/{quote(part.removeprefix(_DOMAIN))}"


def _message_id(spot: Spot) -> dict[str, Any]:
    return {
        "ledgerId": spot.ledger_id,
        "entryId": spot.entry_id,
        "partitionIndex": -1,
        "batchIndex": spot.skipped if spot.skipped else -1,
        "isExcluded": False,
    }


def schema_from_json(found: Any) -> SchemaData:
    """From the admin interface's form, in which a pair is an object with both definitions."""
    try:
        kind, text, properties = SchemaType[found["type"]], str(found["data"]), dict(found.get("properties") or {})
        data = _pair(text) if kind is SchemaType.KEY_VALUE else text.encode()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"the broker's answer is no schema: {error!r}") from None
    return SchemaData(kind, data, {str(key): str(value) for key, value in properties.items()})


def _pair(text: str) -> bytes:
    both = json.loads(text)
    parts = [_definition(both[side]) for side in ("key", "value")]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _definition(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part, separators=(",", ":")).encode()
