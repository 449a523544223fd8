"""Call: one request as its handler sees it. Knows names, flags and JSON; knows nothing of HTTP servers.

Encoding:  the path is matched as it came, so that an encoded slash is a part of a name; its parts are decoded here, as
           `application/x-www-form-urlencoded`, which is what Pulsar's clients write.
Result:    what a handler returns is answered as JSON; None as 204, or as an empty 200 where something was asked for;
           a `Reply` as it is.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from magnetar.admin.errors import BAD_REQUEST, NOT_FOUND, ElsewhereError, RestError
from magnetar.admin.plain_json import read_json
from magnetar.broker.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.service import BrokerService
from magnetar.broker.topic import Topic

if TYPE_CHECKING:
    from magnetar.admin.context import AdminContext


@dataclass(frozen=True, slots=True)
class Reply:
    """An answer that is not JSON, or has headers of its own."""

    body: bytes = b""
    content_type: str = "application/json"
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Call:
    context: AdminContext
    path: Mapping[str, str]
    query: Mapping[str, str]
    body: bytes = b""
    domain: Domain = Domain.PERSISTENT
    """Of the topics that the route is about."""

    @property
    def service(self) -> BrokerService:
        return self.context.broker.service

    # --- names --------------------------------------------------------------------------------------------------------

    def name(self, part: str) -> str:
        """A part of the path, decoded."""
        return decode_name(self.path[part])

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName.of(self.name("tenant"), self.name("namespace"))

    @property
    def topic(self) -> TopicName:
        return self.namespace.topic(self.name("topic"), self.domain)

    # --- what was sent ------------------------------------------------------------------------------------------------

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.query.get(name)
        return default if text is None else text.lower() == "true"

    def number(self, name: str) -> int:
        """A part of the path that is one."""
        return _integer(self.name(name), name)

    def query_number(self, name: str, default: int) -> int:
        text = self.query.get(name)
        return default if text is None else _integer(text, name)

    def json(self) -> Any:
        """None without a body."""
        if not self.body.strip():
            return None
        try:
            return read_json(self.body)
        except ValueError as error:
            raise RestError(BAD_REQUEST, f"the body is not JSON that can be taken: {error}") from None

    def json_object(self) -> dict[str, Any]:
        found = self.json()
        if not isinstance(found, dict):
            raise RestError(BAD_REQUEST, f"the body must be a JSON object, not {_kind(found)}")
        return found

    def json_names(self) -> list[str]:
        found = self.json()
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise RestError(BAD_REQUEST, "the body must be a JSON list of strings")
        return found

    def json_texts(self) -> dict[str, str]:
        """An object of strings; empty without a body."""
        found = self.json() or {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            raise RestError(BAD_REQUEST, "the body must be a JSON object of strings")
        return found

    def json_integer(self) -> int:
        found = self.json()
        if isinstance(found, bool) or not isinstance(found, int):
            raise RestError(BAD_REQUEST, f"the body must be an integer, not {_kind(found)}")
        return found

    def json_flag(self) -> bool:
        found = self.json()
        if not isinstance(found, bool):
            raise RestError(BAD_REQUEST, f"the body must be true or false, not {_kind(found)}")
        return found

    # --- topics -------------------------------------------------------------------------------------------------------

    async def partitions(self) -> int:
        """Of the topic in the path; 0 if it is not partitioned. Nothing is made."""
        found = None if self.topic.is_partition else await self.service.resources.partitioned_topics.get(self.topic)
        return 0 if found is None else found.partitions

    async def topics(self) -> list[TopicName]:
        """The topic itself, or all its partitions."""
        count = await self.partitions()
        return [self.topic.with_partition(index) for index in range(count)] if count else [self.topic]

    async def loaded(self, name: TopicName | None = None) -> Topic:
        """The topic of the path, loaded here. 404 if there is none, 307 if another broker has it."""
        wanted = name or self.topic
        found = self.service.topics.find(wanted)
        if found is not None:
            return found
        owner = await self.service.look_up(wanted)
        if not owner.is_owner:
            raise ElsewhereError(owner.http_url)
        if not await self.service.exists(wanted):
            raise RestError(NOT_FOUND, f"Topic {wanted} not found")
        return await self.service.topic(wanted, create=False)

    async def persistent(self, name: TopicName | None = None) -> PersistentTopic:
        await self.require_not_partitioned(name)
        found = await self.loaded(name)
        if not isinstance(found, PersistentTopic):
            raise RestError(405, f"{found.name} is not persistent: it keeps no messages")
        return found

    async def require_not_partitioned(self, name: TopicName | None = None) -> None:
        if name is None and await self.partitions():
            raise RestError(405, f"{self.topic} is partitioned: ask for one of its partitions")


def _integer(text: str, name: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise RestError(BAD_REQUEST, f"{name} is {text!r}, which is not an integer") from None


def _kind(value: object) -> str:
    return "nothing" if value is None else f"{json.dumps(value)[:60]}"
