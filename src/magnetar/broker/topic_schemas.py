"""Schemas at the door of a topic: what a producer or consumer brings is registered, checked, or refused.

Producer:  its schema becomes the topic's next version if it fits the strategy and may be added, or is one already. One
           without a schema is let in, unless the topic has one and its policies insist.
Consumer:  on a topic that is in use its schema must fit what is there; on an idle one it becomes the first version.
Read next: schemas/registry.py
"""

from __future__ import annotations

from magnetar.broker.persistent_topic import PersistentTopic
from magnetar.broker.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.broker.schemas.registry import SchemaRegistry
from magnetar.broker.topic import Topic
from magnetar.errors import IncompatibleSchemaError

NO_VERSION = b""


class TopicSchemas:
    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry

    async def add(self, topic: Topic, schema: SchemaData | None) -> bytes:
        """The version that messages of this producer carry; empty for one without a schema."""
        name, policies = topic.name.schema_name, topic.policies
        if schema is None or schema.type is SchemaType.NONE:
            if policies.schema_validation_enforced and await self.registry.latest(name) is not None:
                raise IncompatibleSchemaError(f"topic {topic.name} has a schema: producers must bring one, too")
            return NO_VERSION
        added = await self.registry.add(
            name, schema, policies.schema_compatibility, may_update=policies.schema_auto_update
        )
        return added.version_bytes

    async def check_consumer(self, topic: Topic, schema: SchemaData) -> None:
        await self.registry.add_or_check(
            topic.name.schema_name,
            schema,
            topic.policies.schema_compatibility,
            may_update=topic.policies.schema_auto_update,
            is_idle=_is_idle(topic),
        )

    async def get(self, name: str, version: int | None) -> StoredSchema | None:
        """Of a topic's schema name; the latest without a version."""
        return await (self.registry.latest(name) if version is None else self.registry.version(name, version))


def _is_idle(topic: Topic) -> bool:
    """Neither messages nor anybody who may have brought some, or knows what is in them."""
    if topic.producers.user_count or topic.consumers_with_schema:
        return False
    return not isinstance(topic, PersistentTopic) or not topic.log.chain.size_bytes
