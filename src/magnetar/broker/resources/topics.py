"""Persistent topics that are there: each is a node with the state of its log, one for each subscription below it."""

from __future__ import annotations

from magnetar.broker.names import NamespaceName, TopicName, decode_name
from magnetar.broker.resources import paths
from magnetar.broker.resources.documents import Documents
from magnetar.errors import NodeExistsError


class Topics:
    def __init__(self, documents: Documents) -> None:
        self._documents = documents

    async def names(self, namespace: NamespaceName) -> list[TopicName]:
        """All of a namespace, each partition by itself, sorted as the store has them."""
        return [namespace.topic(decode_name(name)) for name in await self._documents.children(paths.logs(namespace))]

    async def exists(self, topic: TopicName) -> bool:
        return await self._documents.store.get(topic.log_path) is not None

    async def create_if_absent(self, topic: TopicName) -> bool:
        """An empty node is a new topic; False if it is there already."""
        try:
            await self._documents.store.create(topic.log_path, make_parents=True)
        except NodeExistsError:
            return False
        self._documents.cache.drop(paths.logs(topic.namespace))
        return True
