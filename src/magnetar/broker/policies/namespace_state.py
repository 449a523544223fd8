"""NamespaceState: what is known of one namespace's policies and of those of its topics, and who wants to hear of it.

Invariant: a listener was told, or has asked for, every state that its topic's effective policies have been in last; it
           is called only when they differ from those it knows.
Shared:    topics without policies of their own have one object between them: most topics are such, and merging is slow.
No I/O:    service.py brings documents and events, and asks.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

from magnetar.broker.names import NamespaceName, TopicName
from magnetar.broker.policies.effective import EffectivePolicies
from magnetar.broker.policies.events import PolicyChange
from magnetar.broker.policies.fields import Json
from magnetar.broker.policies.merge import Documents, merge_policies
from magnetar.config.root import Config
from magnetar.errors import MagnetarError

log = logging.getLogger(__name__)

Listener: TypeAlias = Callable[[EffectivePolicies], None]


@dataclass(frozen=True, slots=True)
class TopicDocument:
    document: Mapping[str, Any]
    schema_version: int | None
    """Of the schema it was written with; None: of none that is registered."""


class TopicDocuments:
    """Of a namespace's topics: each may have policies of its own, and global ones."""

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
    """A topic that is loaded, and what its listener knows."""

    __slots__ = ("known", "listener", "topic")

    def __init__(self, topic: TopicName, listener: Listener, known: EffectivePolicies) -> None:
        self.topic = topic
        self.listener = listener
        self.known = known


class NamespaceState:
    def __init__(self, name: NamespaceName, config: Config) -> None:
        self.name = name
        self.document: Json | None = None
        self.topics = TopicDocuments()
        self._config = config
        self._watched: dict[_Watched, None] = {}
        self._shared: dict[bool, EffectivePolicies] = {}
        """Of topics without policies of their own, by whether they are the brokers'."""

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
        self._watched[watched] = None

        def unwatch() -> None:
            self._watched.pop(watched, None)

        return unwatch

    # --- changes ------------------------------------------------------------------------------------------------------

    def set_document(self, document: Json | None) -> None:
        """A malformed policy, or none at all, leaves topics with what they have: they are in use."""
        self.document = document
        self._shared.clear()
        if document is not None:
            self._tell(None)

    def set_topics(self, topics: TopicDocuments) -> None:
        self.topics = topics
        self._tell(None)

    def apply(self, change: PolicyChange, schema_version: int | None) -> None:
        self.topics.apply(change, schema_version)
        self._tell(change.topic)

    def _tell(self, only: TopicName | None) -> None:
        for watched in list(self._watched):
            if only is None or watched.topic.without_partition() == only:
                self._tell_one(watched)

    def _tell_one(self, watched: _Watched) -> None:
        try:
            effective = self.effective(watched.topic)
        except MagnetarError as error:
            log.error("a topic's policies cannot be read", extra={"topic": str(watched.topic), "why": str(error)})
            return
        if effective == watched.known:
            return
        watched.known = effective
        try:
            watched.listener(effective)
        except Exception:  # One topic's trouble must not keep the others from hearing.
            log.exception("a topic did not take its new policies", extra={"topic": str(watched.topic)})
