"""PolicyService: knows the policies of every topic in use, and changes those of single topics.

    await policies.load(topic)                        # when a topic is loaded; waits until its policies are known
    policies.effective(topic)                         # afterwards at any time, without waiting
    unwatch = policies.watch(topic, self.on_policies) # the listener is called when they have changed

Purpose:   a namespace is followed from its first `load` until it was deleted and none of its topics is watched.
Order:     `update_topic` publishes an event to `__change_events`. It returns after the follower has read that event and
           the change is in force. Namespace policies are changed through `Resources.namespaces`; followers watch them.
Limits:    `__change_events` itself is loaded with its namespace's policies only: otherwise its own content would be
           needed to load it.
Read next: follower.py, registry.py; docs/policies.md
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager

from magnetar.broker.policies.events import (
    EventsTopics,
    OutgoingEvent,
    encode_event,
    event_key,
    event_schema,
    new_document,
    parsed_event_schema,
    unknown_field,
)
from magnetar.broker.policies.follower import Listener, NamespaceFollower, NamespaceState
from magnetar.broker.policies.registry import EffectivePolicies, NamespacePolicies
from magnetar.broker.resources.documents import Decision, Document
from magnetar.config.root import Config
from magnetar.errors import NotAllowedError, PoliciesUnavailableError, ResourceMissingError
from magnetar.metadata.store import MetadataStore
from magnetar.names import CHANGE_EVENTS, NamespaceName, TopicName
from magnetar.runtime.keyed_lock import KeyedLock
from magnetar.runtime.slices import Slices
from magnetar.schemas.compatibility import CompatibilityStrategy
from magnetar.schemas.data import version_to_bytes
from magnetar.schemas.registry import SchemaRegistry


class PolicyService:
    def __init__(
        self, store: MetadataStore, schemas: SchemaRegistry, events: EventsTopics, config: Config, slices: Slices
    ) -> None:
        self._store = store
        self._schemas = schemas
        self._events = events if config.broker.topic_policies else None
        self._config = config
        self._slices = slices
        self._followers: dict[NamespaceName, NamespaceFollower] = {}
        self._locks = KeyedLock()
        self._timeout_s = float(config.broker.topic_policies_timeout_s)
        self._is_closed = False

    async def load(self, topic: TopicName) -> None:
        """ResourceMissingError if the namespace does not exist; PoliciesUnavailableError if loading takes too long."""
        follower = await self._loaded(topic.namespace)
        if not topic.is_change_events:
            await self._wait(follower.topics_ready, f"topic policies of namespace {topic.namespace} cannot be read")

    async def refresh(self, name: NamespaceName) -> None:
        """Puts a change of the namespace's own policies into force before it returns."""
        if (follower := self._followers.get(name)) is not None:
            await follower.refresh()

    async def load_namespace(self, name: NamespaceName) -> None:
        """Loads a namespace without its topics' policies, which is enough for `of_namespace`."""
        await self._loaded(name)

    def effective(self, topic: TopicName) -> EffectivePolicies:
        """Returns what counts for a topic that was loaded."""
        return self._state(topic.namespace).effective(topic)

    def watch(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Calls the listener when the policies of a loaded topic differ from what `effective` returns now. Returns a
        function that ends this."""
        return self._state(topic.namespace).watch(topic, listener)

    def of_namespace(self, name: NamespaceName) -> NamespacePolicies:
        """Returns what counts for a namespace that was loaded."""
        return self._state(name).of_namespace

    def is_being_deleted(self, name: NamespaceName) -> bool:
        """Also true after the namespace was deleted."""
        return self._state(name).is_being_deleted

    def topic_policies(self, topic: TopicName, *, is_global: bool = False) -> Document | None:
        """Returns the topic's own document, or its global one; None if it has none."""
        found = self._state(topic.namespace).topics.document(topic, is_global=is_global)
        return None if found is None else copy.deepcopy(dict(found))

    async def update_topic(self, topic: TopicName, decide: Decision, *, is_global: bool = False) -> None:
        """Returns when the change is in force here. InvalidPolicyError if a value does not fit its policy."""
        if self._events is None:
            raise NotAllowedError("policies of single topics are turned off on this broker: set broker.topic_policies")
        async with self._turn(topic.namespace):
            await self.load(topic)
            before = self.topic_policies(topic, is_global=is_global)
            after = decide(copy.deepcopy(before) if before is not None else new_document(is_global=is_global))
            if after is None or after == before:
                return
            after["isGlobal"] = is_global
            schema_version, payload, replicate_to = await self._encoded(topic, after, is_global=is_global)
            key = event_key(topic, is_global=is_global)
            outgoing = OutgoingEvent(key, payload, schema_version, replicate_to)
            await self._publish(self._events, topic.namespace, outgoing)

    async def delete_topic(self, topic: TopicName) -> None:
        """Deletes all policies of a topic. Also called when the topic itself is deleted."""
        if self._events is None or topic.is_change_events:
            return
        async with self._turn(topic.namespace):
            await self.load(topic)
            for is_global in (False, True):
                if self.topic_policies(topic, is_global=is_global) is not None:
                    key = event_key(topic, is_global=is_global)
                    version = version_to_bytes(await self._own_version(topic.namespace))
                    to = self._replicate_to(is_global=is_global)
                    await self._publish(self._events, topic.namespace, OutgoingEvent(key, None, version, to))

    async def _encoded(
        self, topic: TopicName, document: Document, *, is_global: bool
    ) -> tuple[bytes, bytes, tuple[str, ...]]:
        schema, version = parsed_event_schema(), await self._own_version(topic.namespace)
        known = self._state(topic.namespace).topics.get(topic, is_global=is_global)
        if unknown_field(schema, document) is not None and known is not None and known.schema_version is not None:
            theirs = await self._followers[topic.namespace].schema_of(known.schema_version)
            if unknown_field(theirs, document) is None:  # The schema of a newer broker, which has all the fields.
                schema, version = theirs, known.schema_version
        replicate_to = self._replicate_to(is_global=is_global)
        return version_to_bytes(version), encode_event(topic, document, schema, replicate_to), replicate_to

    def _replicate_to(self, *, is_global: bool) -> tuple[str, ...]:
        """Policies that are not global stay in this cluster."""
        return () if is_global else (self._config.broker.cluster,)

    async def _own_version(self, name: NamespaceName) -> int:
        schema_name = name.topic(CHANGE_EVENTS).schema_name
        stored = await self._schemas.add(schema_name, event_schema(), CompatibilityStrategy.ALWAYS_COMPATIBLE)
        return stored.version

    async def _publish(self, events: EventsTopics, name: NamespaceName, event: OutgoingEvent) -> None:
        follower = self._followers[name]
        what = "may have been stored"
        try:
            async with asyncio.timeout(self._timeout_s):
                position = await events.publish(name, event)
                what = "was stored"
                await follower.wait_applied(position)
        except TimeoutError:
            raise PoliciesUnavailableError(
                f"a change of topic policies in namespace {name} {what}, and is not in effect yet: check again later"
            ) from None

    def _turn(self, name: NamespaceName) -> AbstractAsyncContextManager[None]:
        late = PoliciesUnavailableError(f"others change topic policies of namespace {name} for too long: try again")
        return self._locks.hold(str(name), self._timeout_s, late)

    async def _loaded(self, name: NamespaceName) -> NamespaceFollower:
        follower = self._followers.get(name)
        if follower is None:
            if self._is_closed:  # Clients still ask while the broker ends: a new follower would never be closed.
                raise PoliciesUnavailableError(f"the policies of namespace {name} are not read: the broker is stopping")
            state = NamespaceState(name, self._config, self._slices)
            follower = NamespaceFollower(state, self._store, self._events, self._schemas)
            self._followers[name] = follower
            follower.start()
        await self._wait(follower.document_ready, f"the policies of namespace {name} cannot be read")
        if follower.state.document is None:
            await self._forget_if_unused(follower)
            raise ResourceMissingError(f"namespace {name} does not exist: create it first")
        return follower

    async def _wait(self, ready: asyncio.Event, trouble: str) -> None:
        if ready.is_set():
            return
        try:
            async with asyncio.timeout(self._timeout_s):
                await ready.wait()
        except TimeoutError:
            raise PoliciesUnavailableError(f"{trouble}: not within {self._timeout_s:.0f} s") from None

    async def _forget_if_unused(self, follower: NamespaceFollower) -> None:
        if not follower.state.is_watched and self._followers.get(follower.name) is follower:
            del self._followers[follower.name]
            await follower.aclose()

    async def forget(self, names: Iterable[NamespaceName]) -> None:
        """Stops following namespaces that were deleted, unless a topic of theirs is still watched."""
        for name in names:
            if (follower := self._followers.get(name)) is not None:
                await self._forget_if_unused(follower)

    def _state(self, name: NamespaceName) -> NamespaceState:
        follower = self._followers.get(name)
        if follower is None:
            raise PoliciesUnavailableError(f"the policies of namespace {name} were not loaded")
        return follower.state

    async def aclose(self) -> None:
        self._is_closed = True
        followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            await follower.aclose()
