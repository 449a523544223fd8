"""Layers: one policy asked of one level after the other, until one has it set.

Order:     the topic's own policies, its global ones (which all clusters share), the namespace's, then the default that
           the caller gives: a setting of the broker.
Disabled:  a count below zero and a rate that limits nothing are not set: the next level is asked.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar

from magnetar.broker.policies.fields import Json, flag, names, nested, optional_number, text

T = TypeVar("T")


class Layers:
    """A policy has one name in a topic's document and often another one in a namespace's."""

    def __init__(self, topic: Json | None, topic_global: Json | None, namespace: Json | None, cluster: str) -> None:
        self.topics = [document for document in (topic, topic_global) if document is not None]
        self.namespace: Json = namespace or {}
        self._cluster = cluster

    def count(self, topic_field: str, namespace_field: str, default: int) -> int:
        candidates = [optional_number(document, topic_field) for document in self.topics]
        candidates.append(optional_number(self.namespace, namespace_field))
        return next((found for found in candidates if found is not None and found >= 0), default)

    def topic_count(self, topic_field: str) -> int | None:
        """Of a policy that namespaces do not have."""
        candidates = (optional_number(document, topic_field) for document in self.topics)
        return next((found for found in candidates if found is not None and found >= 0), None)

    def flag(self, topic_field: str, namespace_field: str, default: bool) -> bool:
        candidates = [flag(document, topic_field) for document in self.topics]
        candidates.append(flag(self.namespace, namespace_field))
        return next((found for found in candidates if found is not None), default)

    def names(self, topic_field: str, namespace_field: str, default: tuple[str, ...]) -> tuple[str, ...]:
        candidates = [names(document, topic_field) for document in self.topics]
        candidates.append(names(self.namespace, namespace_field))
        return next((found for found in candidates if found), default)

    def text(self, topic_field: str) -> str | None:
        return next((found for document in self.topics if (found := text(document, topic_field)) is not None), None)

    def value(self, topic_field: str, namespace_field: str, read: Callable[[Json], T | None]) -> T | None:
        documents = [nested(document, topic_field) for document in self.topics]
        documents.append(nested(self.namespace, namespace_field))
        return _first(documents, read)

    def rate(self, topic_field: str, namespace_fields: tuple[str, ...], read: Callable[[Json], T | None]) -> T | None:
        """A namespace has its rates for each cluster; the second field, if there is one, is an older name."""
        documents = [nested(document, topic_field) for document in self.topics]
        for field in namespace_fields:
            of_clusters = nested(self.namespace, field) or {}
            documents.append(nested(of_clusters, self._cluster))
        return _first(documents, read)

    def entry(self, topic_field: str, namespace_field: str, key: str, read: Callable[[Json], T | None]) -> T | None:
        """One entry of a map that both have, such as the kinds of quotas."""
        maps = [nested(document, topic_field) for document in self.topics]
        maps.append(nested(self.namespace, namespace_field))
        return _first([nested(found, key) for found in maps if found is not None], read)


def _first(documents: list[Json | None], read: Callable[[Json], T | None]) -> T | None:
    found = (read(document) for document in documents if document is not None)
    return next((value for value in found if value is not None), None)
