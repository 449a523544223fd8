"""Whether a schema that a client brings is well-formed: what each type's definition must be."""

from __future__ import annotations

from functools import lru_cache

from magnetar.broker.schemas.avro.parser import parse_schema
from magnetar.broker.schemas.avro.schema import Schema, UnionSchema
from magnetar.broker.schemas.data import SchemaData, SchemaType
from magnetar.broker.schemas.key_value import split_key_value
from magnetar.broker.schemas.protobuf_native import root_message
from magnetar.errors import InvalidSchemaError

_PARSED_MAX = 500  # Schemas that are in use at a time are far fewer than topics.
_NOT_STORED = (SchemaType.NONE, SchemaType.BYTES, SchemaType.EXTERNAL)
_OF_CLIENTS = (SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH)
_NULL = b"null"  # What the Python client sends as the definition of a string.


def check_schema(schema: SchemaData, *, bytes_max: int) -> None:
    """InvalidSchemaError says what is wrong with it."""
    if len(schema.data) > bytes_max:
        raise InvalidSchemaError(
            f"the schema has {len(schema.data)} bytes, more than schemas.definition_bytes_max allows: {bytes_max}"
        )
    if schema.type in _OF_CLIENTS:
        raise InvalidSchemaError(f"{schema.type.name} is known to clients only: send the schema that was found")
    if schema.type in _NOT_STORED:
        return
    if schema.type.is_avro_based:
        _check_avro(schema)
    elif schema.type is SchemaType.PROTOBUF_NATIVE:
        root_message(schema.data)
    elif schema.type is SchemaType.KEY_VALUE:
        for part in split_key_value(schema):
            check_schema(part, bytes_max=bytes_max)
    elif schema.data and not (schema.type is SchemaType.STRING and schema.data == _NULL):
        raise InvalidSchemaError(f"a schema of type {schema.type.name} has no definition, and this has {schema.data!r}")


def parsed(schema: SchemaData) -> Schema:
    """Of an Avro-based one; many topics share one definition."""
    return _parse(schema.data)


@lru_cache(maxsize=_PARSED_MAX)
def _parse(data: bytes) -> Schema:
    return parse_schema(data)


def _check_avro(schema: SchemaData) -> None:
    found = parsed(schema)
    if schema.type is SchemaType.AVRO and isinstance(found, UnionSchema):
        raise InvalidSchemaError("the schema of a topic cannot be a union: put it into a record")
