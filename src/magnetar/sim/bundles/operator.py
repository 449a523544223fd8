"""The operator: sends requests to the admin interface of any broker, and remembers what it was told.

Requests:  bundles are unloaded, with and without a destination, and split; brokers are drained; topics are trimmed and
           compacted; policies of the namespace and of topics are set; schemas are added; topics are made, written to
           and deleted. A broker sends a request on to the owner, or to the leader, as in production.
Told:      a status below 300 is a promise. One of 4xx means that nothing was done. All else may have been done, or may
           be done later.
Read next: watch.py (Promised), invariants.py (T7)
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable, Callable
from random import Random
from typing import Any, Final, TypeAlias

from magnetar.client import ProducerOptions, PulsarClient
from magnetar.client.http import HttpClient
from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.sim.bundles.cluster import HTTP_PORT, BundleCluster
from magnetar.sim.bundles.options import NAMESPACE
from magnetar.sim.bundles.watch import SCRATCH, Setting
from magnetar.sim.ledgers.cluster import SETTLE_LIMIT_S

OPERATOR: Final = "operator"
SCHEMA_TOPIC: Final = "typed"
_ANSWER_S: Final = 3.0
_SECONDS: Final = 1_000_000  # Times to live are above it, so that nothing expires, and each value is another one.
_OK, _REFUSED, _FAILED = 300, 400, 500

Action: TypeAlias = Callable[[HttpClient, PulsarClient], Awaitable[None]]


class Operator:
    def __init__(self, cluster: BundleCluster, random: Random) -> None:
        self.is_over = False
        self._cluster = cluster
        self._watch = cluster.watch
        self._random = random
        self._topics = [TopicName.parse(name) for name in cluster.topic_options.topic_names]
        self._actions: list[Action] = [
            self._unload,
            self._drain,
            self._split,
            self._set_policy,
            self._set_policy,
            self._add_schema,
            self._make_and_delete,
            self._make_and_delete,
        ]
        if cluster.topic_options.trims:
            self._actions += [self._trim, self._trim]
        if cluster.topic_options.compacts:
            self._actions += [self._compact, self._compact]

    async def run(self, client: PulsarClient) -> None:
        gap_s = self._cluster.bundle_options.command_gap_s
        async with HttpClient(self._cluster.http_urls, self._random) as http:
            while not self.is_over:
                await asyncio.sleep(min(self._random.expovariate(1 / gap_s), 1.0))
                await self._random.choice(self._actions)(http, client)

    async def _ask(self, http: HttpClient, method: str, path: str, body: Any = None, **query: object) -> int:
        """Returns the status of the answer; _FAILED if the request may have been done, or may be done later."""
        sent = b"" if body is None else json.dumps(body).encode()
        try:
            answer = await http.request(method, f"/admin/v2/{path}", query, sent, timeout_s=_ANSWER_S)
        except MagnetarError as error:
            self._watch.note(f"{method} {path}: {error}")
            self._watch.counters["admin requests failed"] += 1
            return _FAILED
        self._watch.note(f"{method} {path}: {answer.status} {answer.body[:100]!r}")
        self._watch.counters["admin requests done" if answer.status < _OK else "admin requests refused"] += 1
        return answer.status

    # --- bundles ------------------------------------------------------------------------------------------------------

    def _any_bundle(self) -> str:
        return str(self._watch.bundle_of(self._random.choice(self._topics)))

    async def _unload(self, http: HttpClient, client: PulsarClient) -> None:
        del client
        query: dict[str, object] = {}
        if self._random.random() < 0.5:
            query["destinationBroker"] = f"{self._random.choice(list(self._cluster.brokers))}:{HTTP_PORT}"
        await self._ask(http, "PUT", f"namespaces/{self._any_bundle()}/unload", **query)

    async def _drain(self, http: HttpClient, client: PulsarClient) -> None:
        """As `magnetar brokers drain` does: all bundles of a broker go to the others."""
        del client
        names = list(self._cluster.brokers)
        drained = self._random.choice(names)
        others = [name for name in names if name != drained]
        self._watch.counters["brokers drained"] += 1
        for each in [each for each in self._watch.owners.values() if each.owner == drained]:
            to = f"{self._random.choice(others)}:{HTTP_PORT}"
            await self._ask(http, "PUT", f"namespaces/{each.bundle}/unload", destinationBroker=to)

    async def _split(self, http: HttpClient, client: PulsarClient) -> None:
        del client
        if self._random.random() < 0.5:  # A namespace has few bundles, and cannot have fewer again.
            await self._ask(http, "PUT", f"namespaces/{self._any_bundle()}/split", unload="false")

    # --- topics -------------------------------------------------------------------------------------------------------

    def _path(self, topic: TopicName) -> str:
        return f"persistent/{NAMESPACE}/{topic.local}"

    async def _trim(self, http: HttpClient, client: PulsarClient) -> None:
        del client
        await self._ask(http, "POST", f"{self._path(self._random.choice(self._topics))}/trim")

    async def _compact(self, http: HttpClient, client: PulsarClient) -> None:
        del client
        if await self._ask(http, "PUT", f"{self._path(self._random.choice(self._topics))}/compaction") < _OK:
            self._watch.counters["compactions begun"] += 1

    async def _make_and_delete(self, http: HttpClient, client: PulsarClient) -> None:
        promised = self._watch.promised
        promised.last_topic += 1
        name = f"{SCRATCH}{promised.last_topic}"
        path = f"persistent/{NAMESPACE}/{name}"
        is_known = await self._ask(http, "PUT", path, {}) < _OK
        if is_known and self._random.random() < 0.5:
            is_known = await self._write(client, f"persistent://{NAMESPACE}/{name}")
        if await self._ask(http, "DELETE", path, force="true") < _OK:
            self._watch.counters["topics deleted"] += 1
            if is_known:  # Nobody else can make it again.
                promised.deleted.append(name)
                if name in self._watch.scratch:
                    self._watch.violated("T7", f"{name} was deleted, and exists")

    async def _write(self, client: PulsarClient, topic: str) -> bool:
        """Returns whether the producer is gone for certain."""
        try:
            producer = await client.producer(topic, ProducerOptions(batching=False, send_timeout_s=1.0))
            try:
                await producer.send(b"scratch")
            finally:
                await producer.aclose()
        except (MagnetarError, TimeoutError):
            return False
        return True

    # --- policies and schemas -----------------------------------------------------------------------------------------

    async def _set_policy(self, http: HttpClient, client: PulsarClient) -> None:
        """A time to live, of the namespace or of one topic."""
        del client
        promised = self._watch.promised
        promised.last_value += 1
        value = _SECONDS + promised.last_value
        if self._cluster.bundle_options.topic_policies and self._random.random() < 0.6:
            topic = self._random.choice(self._topics)
            setting = promised.of_topics.setdefault(str(topic), Setting())
            path, query, body = f"{self._path(topic)}/messageTTL", {"messageTTL": value}, None
        else:
            setting, path, query, body = promised.of_namespace, f"namespaces/{NAMESPACE}/messageTTL", {}, value
        setting.unknown[value] = None  # Also if this process is killed meanwhile.
        status = await self._ask(http, "POST", path, body, **query)
        if status < _FAILED:
            del setting.unknown[value]
        if status < _OK:
            setting.confirmed = value
            self._watch.counters["policies changed"] += 1

    async def _add_schema(self, http: HttpClient, client: PulsarClient) -> None:
        """Each has one more optional field than the one before."""
        del client
        promised = self._watch.promised
        count = len(promised.schemas) + 1
        fields = [{"name": f"f{number}", "type": ["null", "string"], "default": None} for number in range(count)]
        definition = json.dumps({"type": "record", "name": "r", "fields": fields})
        path = f"schemas/{NAMESPACE}/{SCHEMA_TOPIC}/schema"
        body = json.dumps({"type": "AVRO", "schema": definition, "properties": {}}).encode()
        try:
            answer = await http.request("POST", f"/admin/v2/{path}", None, body, timeout_s=_ANSWER_S)
        except MagnetarError as error:
            self._watch.note(f"POST {path}: {error}")
            return
        self._watch.note(f"POST {path}: {answer.status} {answer.body[:100]!r}")
        if answer.status < _OK:
            version = json.loads(answer.body)["version"]["version"]
            if promised.schemas.setdefault(version, definition) != definition:
                self._watch.violated("T7", f"schema version {version} was given to two definitions")
            self._watch.counters["schemas added"] += 1

    # --- the end ------------------------------------------------------------------------------------------------------

    async def look_up_schemas(self, http: HttpClient) -> None:
        """In a healed world."""
        if self._watch.promised.schemas:
            path = f"/admin/v2/schemas/{NAMESPACE}/{SCHEMA_TOPIC}/schemas"
            found = await http.get_json(path, patience_s=SETTLE_LIMIT_S)
            self._watch.promised.found_schemas = {each["version"]: each["data"] for each in found["getSchemaResponses"]}
