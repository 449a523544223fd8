"""What a handler works with: a `Route` that declares a request, and a `Call`, one request as its handler sees it.

A call has names, flags and JSON, independent of the HTTP server. What a handler returns is answered as JSON; None as
204, or as an empty 200 where something was requested; a `Reply` as it is. `AdminContext` is what all requests share.
The server, OpenAPI and the docs are made from the routes.

Format:    The path is matched as it came, so that an encoded slash is a part of a name; its parts are decoded here, as
           `application/x-www-form-urlencoded`, which is what Pulsar's clients write. JSON of a client is accepted only
           if it can be stored and sent on unchanged. Python reads more than that: halves of surrogate pairs, which no
           encoding has; numbers such as NaN; and nesting so deep that recursive code fails. They are refused once,
           here, so that no handler has to check.
"""

from __future__ import annotations

import json
import math
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from http import HTTPStatus
from typing import Any, Final, TypeVar

from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, ElsewhereError, RestError
from magnetar.admin.stats.rates import RateBook
from magnetar.admin.topics.segment_book import SegmentBook
from magnetar.broker.broker import Broker
from magnetar.broker.ownership import Owner
from magnetar.broker.service import BrokerService
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.broker.topics.registry import require_persistent
from magnetar.broker.topics.topic import Topic
from magnetar.client.http import HttpClient, refused
from magnetar.names import Domain, NamespaceName, TopicName, decode_name
from magnetar.runtime.metrics import Health, Metrics
from magnetar.runtime.slices import Slices

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class AdminContext:
    broker: Broker
    metrics: Metrics
    health: Callable[[], Health]
    rates: RateBook
    segments: SegmentBook = field(default_factory=SegmentBook)

    @property
    def slices(self) -> Slices:
        return self.broker.service.slices


REQUEST_SECONDS_MAX: Final = 60.0  # Pulsar's clients wait for the same time.
DEPTH_MAX: Final = 100  # As deep as an Avro schema may be; nothing else that is sent comes near.


def read_json(text: bytes | str) -> Any:
    """Raises a ValueError with the reason if it cannot be accepted."""
    try:
        found = json.loads(text)
    except RecursionError:
        raise _too_deep() from None
    _check(found, 0)
    return found


def _check(value: Any, depth: int) -> None:
    if depth > DEPTH_MAX:
        raise _too_deep()
    match value:
        case str():
            _check_text(value)
        case float() if not math.isfinite(value):
            raise ValueError(f"{value} is not a number that JSON has")
        case list():
            for each in value:
                _check(each, depth + 1)
        case dict():
            for name, each in value.items():
                _check_text(name)
                _check(each, depth + 1)


def _check_text(text: str) -> None:
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise ValueError(f"the half of a surrogate pair, {error.object[error.start]!a}, is not a character") from None


def _too_deep() -> ValueError:
    return ValueError(f"it is nested more than {DEPTH_MAX} levels deep")


@dataclass(frozen=True, slots=True)
class Reply:
    """Is an answer that is not JSON, or has headers of its own."""

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
    """The domain of the route's topics."""

    @property
    def service(self) -> BrokerService:
        return self.context.broker.service

    def name(self, part: str) -> str:
        return decode_name(self.path[part])

    @property
    def namespace(self) -> NamespaceName:
        return NamespaceName.of(self.name("tenant"), self.name("namespace"))

    @property
    def topic(self) -> TopicName:
        return self.namespace.topic(self.name("topic"), self.domain)

    def flag(self, name: str, default: bool = False) -> bool:
        text = self.query.get(name)
        return default if text is None else text.lower() == "true"

    def number(self, name: str) -> int:
        """Returns a part of the path that must be an integer."""
        return _integer(self.name(name), name)

    def query_number(self, name: str, default: int) -> int:
        text = self.query.get(name)
        return default if text is None else _integer(text, name)

    def json(self) -> Any:
        """Returns None without a body."""
        if not self.body.strip():
            return None
        try:
            return read_json(self.body)
        except ValueError as error:
            raise RestError(BAD_REQUEST, f"the body is not valid JSON: {error}") from None

    def json_object(self) -> dict[str, Any]:
        return self._json_of(dict, "a JSON object")

    def json_names(self) -> list[str]:
        found = self.json()
        if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
            raise RestError(BAD_REQUEST, "the body must be a JSON list of strings")
        return found

    def json_texts(self) -> dict[str, str]:
        """Returns an object of strings; empty without a body."""
        found = self.json() or {}
        if not isinstance(found, dict) or not all(isinstance(each, str) for each in found.values()):
            raise RestError(BAD_REQUEST, "the body must be a JSON object of strings")
        return found

    def json_integer(self) -> int:
        return self._json_of(int, "an integer")

    def json_flag(self) -> bool:
        return self._json_of(bool, "true or false")

    def _json_of(self, kind: type[T], what: str) -> T:
        found = self.json()
        if type(found) is not kind:  # A bool is no integer.
            raise RestError(BAD_REQUEST, f"the body must be {what}, not {_kind(found)}")
        return found

    async def partitions(self) -> int:
        """Returns the partitions of the topic in the path; 0 if it is not partitioned. Makes nothing."""
        found = None if self.topic.is_partition else await self.service.resources.partitioned_topics.get(self.topic)
        return 0 if found is None else found.partitions

    async def topics(self) -> list[TopicName]:
        count = await self.partitions()
        return [self.topic.with_partition(index) for index in range(count)] if count else [self.topic]

    async def loaded(self, name: TopicName | None = None) -> Topic:
        """Returns the topic of the path, loaded here. 404 if it does not exist, 307 if another broker has it."""
        wanted = name or self.topic
        found = self.service.topics.find(wanted)
        if found is not None:
            return found
        await self.require_here(wanted)
        if not await self.service.exists(wanted):
            raise RestError(NOT_FOUND, f"Topic {wanted} not found")
        return await self.service.topic(wanted, create=False)

    async def require_here(self, name: TopicName | None = None) -> None:
        """307 if another broker has the topic, or if this broker may not become its owner."""
        owner = await self.service.look_up(name or self.topic, is_authoritative=self.flag("authoritative"))
        if not owner.is_here:
            raise ElsewhereError.of(owner)

    async def ask(self, owner: Owner, method: str, path: str, query: Mapping[str, str] | None = None) -> None:
        """Has another broker do a part of this request, with its body. RestError with the other one's reason."""
        asked = dict(query or {}) | {"authoritative": str(owner.is_candidate and owner.is_authoritative).lower()}
        async with HttpClient(owner.address.http_url, self.service.entropy.random) as http:
            answer = await http.request(method, path, asked, self.body, timeout_s=REQUEST_SECONDS_MAX)
        if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
            raise RestError(answer.status, str(refused(answer)))

    async def ask_elsewhere(self, name: TopicName, method: str, what: str = "", **query: str) -> bool:
        """Has the topic's owner do this for it, and returns True; or returns False, if that is this broker."""
        owner = await self.service.look_up(name)
        if owner.is_here:
            return False
        path = f"/admin/v2/{name.domain}/{name.namespace}/{name.encoded}{what}"
        await self.ask(owner, method, path, query)
        return True

    async def persistent(self, name: TopicName | None = None) -> PersistentTopic:
        await self.require_not_partitioned(name)
        return require_persistent(await self.loaded(name))

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


Handler = Callable[[Call], Awaitable[Any]]


@dataclass(frozen=True, slots=True)
class Query:
    name: str
    what: str
    type: str = "boolean"


@dataclass(frozen=True, slots=True)
class Route:
    method: str
    path: str
    """The path, with `{parts}`; a part is one segment."""
    summary: str
    handler: Handler
    query: tuple[Query, ...] = ()
    body: str = ""
    """The body of a request, in words; empty without one."""
    domain: Domain = Domain.PERSISTENT

    @property
    def parts(self) -> list[str]:
        return [part[1:-1] for part in self.path.split("/") if part.startswith("{")]


TOPIC = "{tenant}/{namespace}/{topic}"


def of_both_domains(
    method: str, path: str, summary: str, handler: Handler, *, query: tuple[Query, ...] = (), body: str = ""
) -> list[Route]:
    """Makes a route for persistent and one for non-persistent topics; `path` is what follows the domain."""
    return [Route(method, f"/admin/v2/{each}/{path}", summary, handler, query, body, each) for each in Domain]
