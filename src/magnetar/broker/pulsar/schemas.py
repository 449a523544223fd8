"""GET_SCHEMA and GET_OR_CREATE_SCHEMA: schemas of a topic that the client has no producer on.

Schemas that come with PRODUCER and SUBSCRIBE are converted here, too.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from magnetar.broker.pulsar.errors import code_of, message_of
from magnetar.broker.pulsar.session import Session
from magnetar.errors import IncompatibleSchemaError, MagnetarError, SchemaMissingError
from magnetar.names import TopicName
from magnetar.schemas.data import SchemaData, SchemaType, StoredSchema, version_from_bytes
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandGetOrCreateSchema, CommandGetSchema, Schema


def schema_of(schema: Schema) -> SchemaData | None:
    """Returns None for no schema, or bytes."""
    kind = SchemaType.from_wire(schema.type)
    if kind is SchemaType.NONE:
        return None
    pairs: Iterable[Any] = schema.properties  # The stub takes their class for the type of schema of that name.
    return SchemaData(kind, schema.schema_data, {pair.key: pair.value for pair in pairs})


def fill_schema(schema: Schema, name: str, stored: StoredSchema) -> None:
    schema.name = name
    schema.schema_data = stored.schema.data
    schema.type = stored.schema.type.to_wire()  # type: ignore[assignment]
    for key, value in stored.schema.properties.items():
        schema.properties.add(key=key, value=value)


def handle_get(session: Session, command: BaseCommand) -> None:
    session.serve(_get(session, command.getSchema), command.getSchema.request_id)


async def _get(session: Session, request: CommandGetSchema) -> None:
    answer = BaseCommand(type=BaseCommand.GET_SCHEMA_RESPONSE)
    response = answer.getSchemaResponse
    response.request_id = request.request_id
    try:
        topic = TopicName.parse(request.topic)
        found = await session.service.schemas.get(topic.schema_name, _version_of(request))
        if found is None:
            raise SchemaMissingError(f"topic {topic} does not exist, or has no such schema")
        fill_schema(response.schema, topic.schema_name, found)
        response.schema_version = found.version_bytes
    except (MagnetarError, TimeoutError) as error:
        response.error_code = code_of(error)  # type: ignore[assignment]
        response.error_message = message_of(error)
    session.answer_command(answer)


def _version_of(request: CommandGetSchema) -> int | None:
    if not request.HasField("schema_version"):
        return None
    if not request.schema_version:
        raise IncompatibleSchemaError("a schema's version is not empty")
    return version_from_bytes(request.schema_version)


def handle_get_or_create(session: Session, command: BaseCommand) -> None:
    session.serve(_get_or_create(session, command.getOrCreateSchema), command.getOrCreateSchema.request_id)


async def _get_or_create(session: Session, request: CommandGetOrCreateSchema) -> None:
    answer = BaseCommand(type=BaseCommand.GET_OR_CREATE_SCHEMA_RESPONSE)
    response = answer.getOrCreateSchemaResponse
    response.request_id = request.request_id
    try:
        topic = await session.service.topic(TopicName.parse(request.topic), create=False)
        response.schema_version = await session.service.add_schema(topic, schema_of(request.schema))
    except (MagnetarError, TimeoutError) as error:
        response.error_code = code_of(error)  # type: ignore[assignment]
        response.error_message = message_of(error)
    session.answer_command(answer)
