"""NamespaceState: the known policies of one namespace and of its topics, and the listeners to their changes.

Invariant: a listener knows the newest effective policies of its topic, because it asked for them or was called with
           them. It is called only when they differ from those that it knows.
Limits:    topics without policies of their own share one object, because most topics are such and merging is slow.
           There is no I/O here: follower.py brings documents and events, and service.py asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.policies.events import PolicyChange
from magnetar.broker.policies.registry import EffectivePolicies, merge_policies
from magnetar.broker.policies.rows import Documents
from magnetar.broker.policies.values import Json
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.names import NamespaceName, TopicName
from magnetar.runtime.slices import Slices

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

    # --- changes ------------------------------------------------------------------------------------------------------

    async def set_document(self, document: Json | None) -> None:
        """Topics keep the policies they have if the document is malformed or missing, because they are in use."""
        self.document = document
        self._shared.clear()
        if document is not None:
            await self.tell_all()

    async def set_topics(self, topics: TopicDocuments) -> None:
        self.topics = topics
        await self.tell_all()

    async def apply(self, change: PolicyChange, schema_version: int | None) -> None:
        self.topics.apply(change, schema_version)
        await self._tell(list(self._watched.get(change.topic, ())))

    async def tell_all(self) -> None:
        """When this returns, every listener knows the policies that are known now, or later ones."""
        await self._tell([watched for of_topic in self._watched.values() for watched in of_topic])

    async def _tell(self, listeners: Sequence[_Watched]) -> None:
        """Works in slices: a namespace may have thousands of topics. Skips those that were unloaded meanwhile."""
        for watched in listeners:
            if watched in self._watched.get(watched.base, ()):
                self._tell_one(watched)
            await self._slices.turn()

    def _tell_one(self, watched: _Watched) -> None:
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
