"""Schemas of a topic's clients: what a producer or consumer brings is registered, checked, or refused.

A producer's schema becomes the topic's next version if it fits the strategy and may be added, or is a version already.
A producer without a schema is accepted, unless the topic has one and its policies require one. On a topic that is in
use a consumer's schema must fit the existing ones; on an idle one it becomes the first version.
Read next: schemas/registry.py
"""

from __future__ import annotations

from magnetar.broker.topics.topic import Topic
from magnetar.errors import IncompatibleSchemaError
from magnetar.schemas.data import SchemaData, SchemaType, StoredSchema
from magnetar.schemas.registry import SchemaRegistry

NO_VERSION = b""


class TopicSchemas:
    def __init__(self, registry: SchemaRegistry) -> None:
        self.registry = registry

    async def add(self, topic: Topic, schema: SchemaData | None) -> bytes:
        """The version that messages of this producer carry; empty for one without a schema."""
        name, policies = topic.name.schema_name, topic.policies
        if schema is None or schema.type is SchemaType.NONE:
            is_required = policies.schema_validation_enforced and not topic.name.is_change_events  # Each event has one.
            if is_required and await self.registry.latest(name) is not None:
                raise IncompatibleSchemaError(f"topic {topic.name} has a schema: producers must have a schema too")
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
        """Returns a schema by the topic's schema name; the latest without a version."""
        return await (self.registry.latest(name) if version is None else self.registry.version(name, version))


def _is_idle(topic: Topic) -> bool:
    """Whether the topic has neither messages nor clients that may have sent or may know some."""
    if topic.producers.user_count or topic.consumers_with_schema:
        return False
    return not topic.has_messages
