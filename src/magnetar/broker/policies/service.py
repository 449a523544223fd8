"""PolicyService: the policies of every topic that is in use, always at hand, and changes to those of single topics.

    await policies.load(topic)                        # when a topic is loaded; waits until all that counts is known
    policies.effective(topic)                         # then at any time, at once
    unwatch = policies.watch(topic, self.on_policies) # called when they have changed

State:     a namespace is followed from its first `load` until it is gone and nobody watches a topic of it any more.
Changes:   `update_topic` publishes an event to `__change_events` and returns when it has come back from there and is in
           force. Namespace policies are changed through `Resources.namespaces`; followers hear of it from the store.
Cycle:     `__change_events` itself is loaded with its namespace's policies only: its own content would be needed else.
Read next: following.py, namespace_state.py, merge.py; docs/policies.md
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import Callable, Iterable
from contextlib import AbstractAsyncContextManager
from typing import Any, TypeAlias

from magnetar.broker.names import CHANGE_EVENTS, NamespaceName, TopicName
from magnetar.broker.one_by_one import OneByOne
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.event_schema import event_schema, parsed_event_schema
from magnetar.broker.policies.events import encode_event, event_key, new_document, unknown_field
from magnetar.broker.policies.events_topic import EventsTopics, OutgoingEvent
from magnetar.broker.policies.following import NamespaceFollower
from magnetar.broker.policies.namespace import AutoTopicCreation, auto_topic_creation, topics_max
from magnetar.broker.policies.namespace_state import Listener, NamespaceState
from magnetar.broker.schemas.data import version_to_bytes
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.schemas.strategy import CompatibilityStrategy
from magnetar.config.root import Config
from magnetar.errors import NotAllowedError, PoliciesUnavailableError, ResourceMissingError
from magnetar.metadata.store import MetadataStore

Document: TypeAlias = dict[str, Any]
Decision: TypeAlias = Callable[[Document], Document | None]
"""From a topic's policies to what they are to be; None leaves them as they are. May change and return its argument."""


class PolicyService:
    def __init__(self, store: MetadataStore, schemas: SchemaRegistry, events: EventsTopics, config: Config) -> None:
        self._store = store
        self._schemas = schemas
        self._events = events if config.broker.topic_policies else None
        self._config = config
        self._followers: dict[NamespaceName, NamespaceFollower] = {}
        self._one_by_one = OneByOne()
        self._timeout_s = float(config.broker.topic_policies_timeout_s)

    # --- reading ------------------------------------------------------------------------------------------------------

    async def load(self, topic: TopicName) -> None:
        """ResourceMissingError if there is no such namespace; PoliciesUnavailableError if it takes too long."""
        follower = await self._loaded(topic.namespace)
        if not topic.is_change_events:
            await self._wait(follower.topics_ready, f"topic policies of namespace {topic.namespace} cannot be read")

    async def refresh(self, name: NamespaceName) -> None:
        """After a change of the namespace's own policies: they are in force when this returns."""
        if (follower := self._followers.get(name)) is not None:
            await follower.refresh()

    async def load_namespace(self, name: NamespaceName) -> None:
        """Without its topics' policies: enough for `auto_topic_creation` and the like."""
        await self._loaded(name)

    def effective(self, topic: TopicName) -> EffectivePolicies:
        """Of a topic that was loaded."""
        return self._state(topic.namespace).effective(topic)

    def watch(self, topic: TopicName, listener: Listener) -> Callable[[], None]:
        """Of a topic that was loaded: tells when they differ from what `effective` says now. Returns how to end it."""
        return self._state(topic.namespace).watch(topic, listener)

    def namespace_policies(self, name: NamespaceName) -> Document:
        """The document as it is stored, of a namespace that was loaded."""
        return copy.deepcopy(dict(self._state(name).document or {}))

    def auto_topic_creation(self, name: NamespaceName) -> AutoTopicCreation:
        return auto_topic_creation(self._state(name).document or {}, self._config.broker)

    def topics_max(self, name: NamespaceName) -> int:
        return topics_max(self._state(name).document or {}, self._config.broker)

    def is_being_deleted(self, name: NamespaceName) -> bool:
        """Also when it is gone."""
        return self._state(name).is_being_deleted

    def topic_policies(self, topic: TopicName, *, is_global: bool = False) -> Document | None:
        """The topic's own document, or its global one; None if it has none."""
        found = self._state(topic.namespace).topics.document(topic, is_global=is_global)
        return None if found is None else copy.deepcopy(dict(found))

    # --- changing topic policies --------------------------------------------------------------------------------------

    async def update_topic(self, topic: TopicName, decide: Decision, *, is_global: bool = False) -> None:
        """Returns when the change is in force here. InvalidPolicyError if a value is none of its policy."""
        if self._events is None:
            raise NotAllowedError("topics have no policies of their own here: set broker.topic_policies")
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

    async def delete_topic(self, topic: TopicName, *, keep_global: bool = False) -> None:
        """All policies that a topic has; when the topic itself is deleted, too."""
        if self._events is None or topic.is_change_events:
            return
        async with self._turn(topic.namespace):
            await self.load(topic)
            for is_global in (False,) if keep_global else (False, True):
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
            if unknown_field(theirs, document) is None:  # A newer broker's, which has a place for everything.
                schema, version = theirs, known.schema_version
        replicate_to = self._replicate_to(is_global=is_global)
        return version_to_bytes(version), encode_event(topic, document, schema, replicate_to), replicate_to

    def _replicate_to(self, *, is_global: bool) -> tuple[str, ...]:
        """What is only for this cluster stays in it."""
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
                f"a change of topic policies in namespace {name} {what}, and is not in force yet: look again later"
            ) from None

    def _turn(self, name: NamespaceName) -> AbstractAsyncContextManager[None]:
        late = PoliciesUnavailableError(f"others change topic policies of namespace {name} for too long: try again")
        return self._one_by_one.turn(str(name), self._timeout_s, late)

    # --- following ----------------------------------------------------------------------------------------------------

    async def _loaded(self, name: NamespaceName) -> NamespaceFollower:
        follower = self._followers.get(name)
        if follower is None:
            follower = NamespaceFollower(NamespaceState(name, self._config), self._store, self._events, self._schemas)
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
        """Of namespaces that were deleted: they are not followed any more, unless a topic is still watched."""
        for name in names:
            if (follower := self._followers.get(name)) is not None:
                await self._forget_if_unused(follower)

    def _state(self, name: NamespaceName) -> NamespaceState:
        follower = self._followers.get(name)
        if follower is None:
            raise PoliciesUnavailableError(f"the policies of namespace {name} were not loaded")
        return follower.state

    async def aclose(self) -> None:
        followers, self._followers = list(self._followers.values()), {}
        for follower in followers:
            await follower.aclose()
