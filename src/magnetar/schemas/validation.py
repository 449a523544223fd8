"""Checks whether a client's schema is well-formed: each type has its rules for the definition.

Format:    KEY_VALUE is two schemas: length i32, the key's definition, length i32, the value's; −1 for none. Types and
           properties of both are properties of the whole: `key.schema.type`, `key.schema.properties` (JSON), and
           `value.…`. PROTOBUF_NATIVE is JSON with `fileDescriptorSet` (base64 of protobuf's FileDescriptorSet),
           `rootMessageTypeName` and `rootFileDescriptorName`.
Limits:    protobuf has its own rules for changes of a message; a broker checks only that it is the same one.
"""

from __future__ import annotations

import base64
import binascii
import json
import struct
from functools import lru_cache
from typing import Any

from google.protobuf.descriptor_pb2 import DescriptorProto, FileDescriptorProto, FileDescriptorSet
from google.protobuf.message import DecodeError

from magnetar.errors import InvalidSchemaError
from magnetar.schemas.avro.parser import parse_schema
from magnetar.schemas.avro.schema import Schema, UnionSchema
from magnetar.schemas.data import SchemaData, SchemaType

_LENGTH = struct.Struct(">i")
_NONE = -1


def split_key_value(schema: SchemaData) -> tuple[SchemaData, SchemaData]:
    """Raises InvalidSchemaError if it is not a KEY_VALUE schema in this form."""
    if schema.type is not SchemaType.KEY_VALUE:
        raise InvalidSchemaError(f"a schema of type {schema.type.name} is not a KEY_VALUE schema")
    key, rest = _take(schema.data)
    value, rest = _take(rest)
    if rest:
        raise InvalidSchemaError(f"{len(rest)} bytes are left after the two definitions of a KEY_VALUE schema")
    return _part(schema, "key", key), _part(schema, "value", value)


def _take(data: bytes) -> tuple[bytes, bytes]:
    if len(data) < _LENGTH.size:
        raise InvalidSchemaError("the definition of a KEY_VALUE schema ends too early")
    (length,) = _LENGTH.unpack_from(data)
    end = _LENGTH.size + max(length, 0)
    if length < _NONE or end > len(data):
        raise InvalidSchemaError(f"a KEY_VALUE schema ends before its definition of {length} bytes")
    return data[_LENGTH.size : end], data[end:]


def _part(schema: SchemaData, part: str, data: bytes) -> SchemaData:
    name = schema.properties.get(f"{part}.schema.type", SchemaType.BYTES.name)
    if name not in SchemaType.__members__:
        raise InvalidSchemaError(f"the {part} of a KEY_VALUE schema has the unknown type {name!r}")
    return SchemaData(SchemaType[name], data, _properties(schema, part))


def _properties(schema: SchemaData, part: str) -> dict[str, str]:
    text = schema.properties.get(f"{part}.schema.properties")
    if not text:
        return {}
    try:
        found = json.loads(text)
    except (ValueError, RecursionError):
        found = None
    if not isinstance(found, dict):
        raise InvalidSchemaError(f"{part}.schema.properties of a KEY_VALUE schema is not a JSON object")
    return {str(name): str(value) for name, value in found.items()}


def root_message(data: bytes) -> str:
    """Returns the message's full name; raises InvalidSchemaError unless everything that it needs is in it."""
    document = _document(data)
    files = {file.name: file for file in _files(document)}
    root = _text(document, "rootFileDescriptorName")
    name = _text(document, "rootMessageTypeName")
    _check_dependencies(files, root)
    if name not in _messages(files[root]):
        raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema is of message {name}, which is not in {root}")
    return name


def _document(data: bytes) -> dict[str, Any]:
    try:
        document = json.loads(data)
    except (ValueError, RecursionError):
        document = None
    if not isinstance(document, dict):
        raise InvalidSchemaError("the definition of a PROTOBUF_NATIVE schema is not a JSON object")
    return document


def _text(document: dict[str, Any], name: str) -> str:
    found = document.get(name)
    if not isinstance(found, str):
        raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema has no {name}")
    return found


def _files(document: dict[str, Any]) -> list[FileDescriptorProto]:
    try:
        encoded = base64.b64decode(_text(document, "fileDescriptorSet"), validate=True)
        return list(FileDescriptorSet.FromString(encoded).file)
    except (binascii.Error, ValueError, DecodeError):
        raise InvalidSchemaError("the fileDescriptorSet of a PROTOBUF_NATIVE schema is not one in base64") from None


def _check_dependencies(files: dict[str, FileDescriptorProto], root: str) -> None:
    needed = [root]
    for name in needed:
        if name not in files:
            raise InvalidSchemaError(f"a PROTOBUF_NATIVE schema lacks the descriptors of file {name}")
        needed.extend(each for each in files[name].dependency if each not in needed)


def _messages(file: FileDescriptorProto) -> list[str]:
    prefix = f"{file.package}." if file.package else ""
    found = [(f"{prefix}{message.name}", message) for message in file.message_type]
    for name, message in found:
        found.extend(_nested(name, message))
    return [name for name, _ in found]


def _nested(name: str, message: DescriptorProto) -> list[tuple[str, DescriptorProto]]:
    return [(f"{name}.{inner.name}", inner) for inner in message.nested_type]


_PARSED_MAX = 500  # Far fewer schemas than topics are in use at a time.
_NOT_STORED = (SchemaType.NONE, SchemaType.BYTES, SchemaType.EXTERNAL)
_OF_CLIENTS = (SchemaType.AUTO, SchemaType.AUTO_CONSUME, SchemaType.AUTO_PUBLISH)
_NULL = b"null"  # The Python client sends this as the definition of a string.


def check_schema(schema: SchemaData, *, bytes_max: int) -> None:
    """Raises InvalidSchemaError with the reason."""
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
    """Returns the parsed form of an Avro-based schema; many topics share one definition."""
    return _parse(schema.data)


@lru_cache(maxsize=_PARSED_MAX)
def _parse(data: bytes) -> Schema:
    return parse_schema(data)


def _check_avro(schema: SchemaData) -> None:
    found = parsed(schema)
    if schema.type is SchemaType.AVRO and isinstance(found, UnionSchema):
        raise InvalidSchemaError("the schema of a topic cannot be a union: put it into a record")
