"""Finds the topics and partitions of a read, by names or patterns; and asks for schemas and subscriptions over HTTP.

Invariant: nothing is made by a request. Each partition is a topic of its own, with its own log; a partition that is
           named is read alone.
"""

from __future__ import annotations

import json
import re
import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final
from urllib.parse import quote

from magnetar.client.http import HttpAnswer, HttpClient, succeeded
from magnetar.client.topics import partition_name, partition_of
from magnetar.errors import HttpRefusedError, InvalidSchemaError, SchemaMissingError, TopicNotFoundError
from magnetar.schemas.data import SchemaData, SchemaType, version_from_bytes
from magnetar.spark.cluster import Cluster
from magnetar.spark.reading.options import Subject
from magnetar.spark.reading.stream_offsets import Spot

_NOT_FOUND: Final = 404
_CONFLICT: Final = 409
_TIMEOUT_S: Final = 30.0
_LENGTH = struct.Struct(">i")
_DOMAIN: Final = "persistent://"
_PARTITION: Final = re.compile(r"-partition-\d+$")


@dataclass(frozen=True, slots=True, order=True)
class TopicPart:
    """A topic without partitions, or one partition."""

    name: str
    """The full name; with its number for a partition."""

    @property
    def topic(self) -> str:
        return topic_of(self.name)

    @property
    def partition(self) -> int:
        """-1: it has no partitions."""
        return partition_of(self.name)


def topic_of(part: str) -> str:
    return _PARTITION.sub("", part)


async def find_parts(cluster: Cluster, subject: Subject) -> list[TopicPart]:
    """Returns the parts, sorted. Missing names are included: opening them raises the error. Patterns may match
    nothing."""
    if subject.pattern:
        return await _matching(cluster, subject)
    parts: dict[TopicPart, None] = {}
    for name in subject.names:
        parts.update(dict.fromkeys(await _parts_of(cluster, name)))
    return sorted(parts)


async def _parts_of(cluster: Cluster, name: str) -> Sequence[TopicPart]:
    count = 0 if partition_of(name) >= 0 else await cluster.partitions(name)
    return [TopicPart(partition_name(name, number)) for number in range(count)] or [TopicPart(name)]


async def _matching(cluster: Cluster, subject: Subject) -> list[TopicPart]:
    try:
        names = await cluster.topics_of(subject.namespace)
    except HttpRefusedError as error:
        if error.status != _NOT_FOUND:
            raise
        raise TopicNotFoundError(f"option topicsPattern: namespace {subject.namespace} does not exist") from None
    return sorted(TopicPart(name) for name in names if is_meant(name, subject))


def is_meant(part: str, subject: Subject) -> bool:
    """Reports whether a read of this subject includes the part, if it exists."""
    topic = topic_of(part)
    if not subject.pattern:
        return part in subject.names or topic in subject.names
    prefix = f"{_DOMAIN}{subject.namespace}/"
    return topic.startswith(prefix) and re.fullmatch(subject.pattern, topic.removeprefix(prefix)) is not None


class TopicAdmin:
    """Requests about schemas and subscriptions. Lives on the loop's thread."""

    def __init__(self, http: HttpClient) -> None:
        self._http = http

    async def schema(self, topic: str, version: bytes | None = None) -> SchemaData:
        """Returns the newest schema, or that version. Raises SchemaMissingError."""
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
        path = f"/admin/v2/schemas/{quote(topic.removeprefix(_DOMAIN))}/schemas"
        found = await self._http.get_json(path, patience_s=_TIMEOUT_S)
        versions = sorted(found["getSchemaResponses"], key=lambda each: int(each["version"]), reverse=True)
        return [schema_from_json(each) for each in versions]

    async def place_subscription(self, part: str, name: str, spot: Spot) -> None:
        """Makes or moves the subscription, so that this message is the first that it has not acknowledged."""
        answer = await self._request("PUT", part, quote(name, safe=""), spot)
        if answer.status != _CONFLICT and not spot.skipped:
            succeeded(answer)
            return
        await self.move_subscription(part, name, spot)

    async def move_subscription(self, part: str, name: str, spot: Spot) -> None:
        succeeded(await self._request("POST", part, f"{quote(name, safe='')}/resetcursor", spot))

    async def _request(self, verb: str, part: str, what: str, spot: Spot) -> HttpAnswer:
        message_id = {"ledgerId": spot.ledger_id, "entryId": spot.entry_id, "partitionIndex": -1, "isExcluded": False}
        body = json.dumps(message_id | {"batchIndex": spot.skipped or -1}).encode()
        path = f"/admin/v2/persistent/{quote(part.removeprefix(_DOMAIN))}/subscription/{what}"
        return await self._http.request(verb, path, body=body, timeout_s=_TIMEOUT_S)


def schema_from_json(found: Any) -> SchemaData:
    """Parses the admin interface's form, in which a pair is an object with both definitions."""
    try:
        kind, text, properties = SchemaType[found["type"]], str(found["data"]), dict(found.get("properties") or {})
        data = _pair(text) if kind is SchemaType.KEY_VALUE else text.encode()
    except (KeyError, TypeError, ValueError) as error:
        raise InvalidSchemaError(f"the broker's response is not a schema: {error!r}") from None
    return SchemaData(kind, data, {str(key): str(value) for key, value in properties.items()})


def _pair(text: str) -> bytes:
    both = json.loads(text)
    parts = [_definition(both[side]) for side in ("key", "value")]
    return b"".join(_LENGTH.pack(len(part)) + part for part in parts)


def _definition(part: Any) -> bytes:
    return part.encode() if isinstance(part, str) else json.dumps(part, separators=(",", ":")).encode()
