"""NamespaceFollower: follows a namespace's document in the metadata store, and its topics' policies in their events.

Purpose:   NamespaceState has what is known, and calls the listeners when it changes; there is no I/O in it. The
           follower brings it documents and events, and service.py asks it.
Invariant: a listener knows the newest effective policies of its topic, because it asked for them or was called with
           them. It is called only when they differ from those that it knows.
Order:     `document_ready` is set after the namespace was read once, `topics_ready` after its events were read to the
           end.
Failure:   a reader that fails is opened again, with pauses. Everything is then read into new documents, which replace
           the old ones at the end, so that no policy is forgotten in between.
Limits:    a namespace without `__change_events` has no topic policies. The two nodes under which that topic would
           appear are watched, and nothing is created. Topics without policies of their own share one object, because
           most topics are such and merging is slow.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.policies.events import (
    EventsReader,
    EventsTopics,
    IncomingEvent,
    PolicyChange,
    decode_deletion,
    decode_event,
    parsed_event_schema,
)
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies, merge_policies, namespace_policies
from magnetar.broker.policies.rows import Documents
from magnetar.broker.policies.values import Json
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import decode
from magnetar.config.root import Config
from magnetar.errors import InvalidSchemaError, MagnetarError, MalformedEntryError, StoreClosedError
from magnetar.metadata.follow import follow_value
from magnetar.metadata.store import MetadataStore, Node, WatchEvent
from magnetar.names import CHANGE_EVENTS, NamespaceName, TopicName
from magnetar.runtime.slices import Slices
from magnetar.schemas.avro.schema import Schema
from magnetar.schemas.data import version_from_bytes
from magnetar.schemas.registry import SchemaRegistry
from magnetar.schemas.validation import parsed

log = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[EffectivePolicies], None]


@dataclass(frozen=True, slots=True)
class TopicDocument:
    document: Mapping[str, Any]
    schema_version: int | None
    """The version of the schema that the document was written with; None: that schema is not registered."""


class TopicDocuments:
    """The documents of a namespace's topics: each topic may have policies of its own, and global ones."""

    def __init__(self) -> None:
        self._documents: dict[tuple[TopicName, bool], TopicDocument] = {}

    def get(self, topic: TopicName, *, is_global: bool) -> TopicDocument | None:
        if not self._documents:
            return None
        return self._documents.get((topic.without_partition(), is_global))

    def document(self, topic: TopicName, *, is_global: bool) -> Json | None:
        found = self.get(topic, is_global=is_global)
        return None if found is None else found.document

    def apply(self, change: PolicyChange, schema_version: int | None) -> None:
        key = (change.topic, change.is_global)
        if change.document is None:
            self._documents.pop(key, None)
        elif not (change.only_if_absent and key in self._documents):
            self._documents[key] = TopicDocument(change.document, schema_version)

    def __len__(self) -> int:
        return len(self._documents)


class _Watched:
    """A loaded topic with its listener, and the policies that the listener knows."""

    __slots__ = ("base", "known", "listener", "topic")

    def __init__(self, topic: TopicName, listener: Listener, known: EffectivePolicies) -> None:
        self.topic = topic
        self.base = topic.without_partition()
        self.listener = listener
        self.known = known


class NamespaceState:
    def __init__(self, name: NamespaceName, config: Config, slices: Slices) -> None:
        self.name = name
        self.document: Json | None = None
        self.topics = TopicDocuments()
        self._config = config
        self._slices = slices
        self._watched: dict[TopicName, dict[_Watched, None]] = {}
        """By the topic that the policies belong to: all its partitions share them."""
        self._shared: dict[bool, EffectivePolicies] = {}
        """The policies of topics without policies of their own, by whether brokers use the topics for themselves."""
        self._of_namespace: NamespacePolicies | None = None

    @property
    def is_watched(self) -> bool:
        return bool(self._watched)

    @property
    def is_being_deleted(self) -> bool:
        return self.document is None or self.document.get("deleted") is True

    def effective(self, topic: TopicName) -> EffectivePolicies:
        own = self.topics.document(topic, is_global=False)
        of_all_clusters = self.topics.document(topic, is_global=True)
        is_system = topic.is_system
        if own is not None or of_all_clusters is not None:
            return merge_policies(Documents(own, of_all_clusters, self.document), self._config, is_system=is_system)
        shared = self._shared.get(is_system)
        if shared is None:
            documents = Documents(None, None, self.document)
            shared = self._shared[is_system] = merge_policies(documents, self._config, is_system=is_system)
        return shared

    @property
    def of_namespace(self) -> NamespacePolicies:
        """What counts for the namespace as a whole; merged once for each document."""
        if self._of_namespace is None:
            self._of_namespace = namespace_policies(self.document or {}, self._config)
        return self._of_namespace

    def watch(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        watched = _Watched(topic, listener, self.effective(topic))
        base = watched.base
        self._watched.setdefault(base, {})[watched] = None

        def unwatch() -> None:
            of_topic = self._watched.get(base, {})
            of_topic.pop(watched, None)
            if not of_topic:
                self._watched.pop(base, None)

        return unwatch

    async def set_document(self, document: Json | None) -> None:
        """Topics keep the policies they have if the document is malformed or missing, because they are in use."""
        self.document = document
        self._shared.clear()
        self._of_namespace = None
        if document is not None:
            await self.notify_all()

    async def set_topics(self, topics: TopicDocuments) -> None:
        self.topics = topics
        await self.notify_all()

    async def apply(self, change: PolicyChange, schema_version: int | None) -> None:
        self.topics.apply(change, schema_version)
        await self._notify(list(self._watched.get(change.topic, ())))

    async def notify_all(self) -> None:
        """When this returns, every listener knows the policies that are known now, or later ones."""
        await self._notify([watched for of_topic in self._watched.values() for watched in of_topic])

    async def _notify(self, listeners: Sequence[_Watched]) -> None:
        """Works in slices: a namespace may have thousands of topics. Skips those that were unloaded meanwhile."""
        for watched in listeners:
            if watched in self._watched.get(watched.base, ()):
                self._notify_one(watched)
            await self._slices.turn()

    def _notify_one(self, watched: _Watched) -> None:
        try:
            effective = self.effective(watched.topic)
        except MagnetarError as error:
            log.error("a topic's policies cannot be read", extra={"topic": str(watched.topic), "why": str(error)})
            return
        if effective is watched.known or effective == watched.known:
            return
        watched.known = effective
        try:
            watched.listener(effective)
        except Exception:  # An error of one topic must not keep the others from being called.
            log.exception("a topic did not take its new policies", extra={"topic": str(watched.topic)})


_PAUSE_MIN_S = 0.05
_PAUSE_MAX_S = 5.0


class NamespaceFollower:
    """Started by `start`, ended by `aclose`."""

    def __init__(
        self, state: NamespaceState, store: MetadataStore, events: EventsTopics | None, schemas: SchemaRegistry
    ) -> None:
        """Without `events` topics have no policies of their own."""
        self.state = state
        self.document_ready = asyncio.Event()
        self.topics_ready = asyncio.Event()
        self._store = store
        self._events = events
        self._schemas = schemas
        self._seen: Node | None = None
        self._is_caught_up = False
        self._applied: dict[int, tuple[int, int]] = {}  # Partition → the last event that was applied.
        self._progress = asyncio.Event()
        self._may_have_appeared = asyncio.Event()
        self._tasks: list[asyncio.Task[None]] = []

    @property
    def name(self) -> NamespaceName:
        return self.state.name

    def start(self) -> None:
        loop = asyncio.get_running_loop()
        self._tasks.append(loop.create_task(self._follow_document(), name=f"policies-of {self.name}"))
        if self._events is None:
            self.topics_ready.set()
        else:
            self._tasks.append(loop.create_task(self._follow_events(self._events), name=f"events-of {self.name}"))
        for task in self._tasks:
            task.add_done_callback(_log_if_failed)

    async def aclose(self) -> None:
        for task in self._tasks:
            task.cancel()
        if self._tasks:
            await asyncio.wait(self._tasks)

    # --- the namespace's document -------------------------------------------------------------------------------------

    async def _follow_document(self) -> None:
        async with aclosing(follow_value(self._store, paths.namespace(self.name))) as nodes:
            async for node in nodes:
                await self._take_document(node)
                self.document_ready.set()

    async def refresh(self) -> None:
        """Reads the document at once, for a caller that has changed it and needs the change to be in force."""
        await self._take_document(await self._store.get(paths.namespace(self.name)))

    async def _take_document(self, node: Node | None) -> None:
        seen = self._seen
        if node and seen and node.created_ms == seen.created_ms and node.version < seen.version:
            await self.state.notify_all()  # Another read was quicker, and may not have called every listener yet.
            return
        self._seen = node
        path = paths.namespace(self.name)
        try:
            await self.state.set_document(None if node is None or not node.value else decode(path, node.value))
        except MagnetarError as error:
            log.error("a namespace's policies cannot be read", extra={"path": path, "why": str(error)})

    # --- its topics' policies -----------------------------------------------------------------------------------------

    async def wait_applied(self, position: tuple[int, int, int]) -> None:
        """Waits until the event at this position was applied. The caller has a timeout."""
        partition, *place = position
        while self._applied.get(partition, (-1, -1)) < tuple(place):
            await self._progress.wait()

    async def _follow_events(self, events: EventsTopics) -> None:
        pause_s = _PAUSE_MIN_S
        while True:
            try:
                await self._wait_for_topic()
                self._is_caught_up = False
                reader = await events.open_reader(self.name)
                if reader is not None:
                    await self._read_all(reader)
            except StoreClosedError:
                return
            except MagnetarError as error:
                log.warning("topic policies are read again", extra={"namespace": str(self.name), "why": str(error)})
            pause_s = _PAUSE_MIN_S if self._is_caught_up else min(2 * pause_s, _PAUSE_MAX_S)
            await asyncio.sleep(pause_s)

    async def _wait_for_topic(self) -> None:
        base = self.name.topic(CHANGE_EVENTS)
        candidates = [base.log_path, base.with_partition(0).log_path]
        while True:
            self._may_have_appeared.clear()
            nodes = await asyncio.gather(*(self._store.get(path, watch=self._on_appeared) for path in candidates))
            if any(node is not None for node in nodes):
                return
            if len(self.state.topics):  # The topic was deleted, and its policies with it.
                await self.state.set_topics(TopicDocuments())
            self.topics_ready.set()
            await self._may_have_appeared.wait()

    def _on_appeared(self, _event: WatchEvent) -> None:
        self._may_have_appeared.set()

    async def _read_all(self, reader: EventsReader) -> None:
        try:
            documents = TopicDocuments()
            while batch := await reader.read_available():
                for event in batch:
                    await self._take(event, documents)
            await self.state.set_topics(documents)
            self.topics_ready.set()
            self._is_caught_up = True
            self._tell_progress()
            while True:
                await reader.wait_for_more()
                while batch := await reader.read_available():
                    for event in batch:
                        await self._take(event, None)
                    self._tell_progress()
        finally:
            await reader.aclose()

    async def _take(self, event: IncomingEvent, documents: TopicDocuments | None) -> None:
        """Applies an event to `documents`, which are read from the beginning; without them, to those in force."""
        try:
            change, version = await self._understand(event)
        except (MalformedEntryError, InvalidSchemaError) as error:  # It stays malformed: the other events still count.
            log.error("an event cannot be read", extra={"namespace": str(self.name), "why": str(error)})
            change, version = None, None
        except MagnetarError:
            raise  # The event is not the cause: all events are read again.
        except Exception:  # Clients may publish anything here, and topics of the namespace must still be loaded.
            log.exception("an event cannot be read", extra={"namespace": str(self.name)})
            change, version = None, None
        if change is not None and documents is not None:
            documents.apply(change, version)
        elif change is not None:
            await self.state.apply(change, version)
        partition, ledger, entry = event.position
        self._applied[partition] = max((ledger, entry), self._applied.get(partition, (-1, -1)))

    async def _understand(self, event: IncomingEvent) -> tuple[PolicyChange | None, int | None]:
        if event.payload is None:
            return decode_deletion(event.key), None
        version = None if not event.schema_version else version_from_bytes(event.schema_version)
        return decode_event(event.payload, await self.schema_of(version)), version

    async def schema_of(self, version: int | None) -> Schema:
        """Returns the schema that an event was written with, or ours if that one is not registered."""
        name = self.name.topic(CHANGE_EVENTS).schema_name
        stored = None if version is None else await self._schemas.version(name, version)
        return parsed_event_schema() if stored is None else parsed(stored.schema)

    def _tell_progress(self) -> None:
        self._progress.set()
        self._progress = asyncio.Event()


def _log_if_failed(task: asyncio.Task[None]) -> None:
    if not task.cancelled() and task.exception() is not None:
        log.critical("policies are not followed any more", exc_info=task.exception(), extra={"task": task.get_name()})
