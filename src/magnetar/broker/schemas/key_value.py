"""KEY_VALUE schemas: two schemas in one.

Form:      length i32, the key's definition, length i32, the value's; −1 for none. Types and properties of both are
           properties of the whole: `key.schema.type`, `key.schema.properties` (JSON), and `value.…`.
"""

from __future__ import annotations

import json
import struct

from magnetar.broker.schemas.data import SchemaData, SchemaType
from magnetar.errors import InvalidSchemaError

_LENGTH = struct.Struct(">i")
_NONE = -1


def split_key_value(schema: SchemaData) -> tuple[SchemaData, SchemaData]:
    """InvalidSchemaError if it is not a KEY_VALUE schema in this form."""
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
        raise InvalidSchemaError(f"a KEY_VALUE schema has a definition of {length} bytes, which are not there")
    return data[_LENGTH.size : end], data[end:]


def _part(schema: SchemaData, part: str, data: bytes) -> SchemaData:
    name = schema.properties.get(f"{part}.schema.type", SchemaType.BYTES.name)
    if name not in SchemaType.__members__:
        raise InvalidSchemaError(f"the {part} of a KEY_VALUE schema has type {name!r}, which is none")
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
