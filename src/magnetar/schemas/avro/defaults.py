"""Checks whether a field's default, as JSON has it, is a value of the field's type."""

from __future__ import annotations

from typing import Any

from magnetar.schemas.avro.schema import (
    ArraySchema,
    EnumSchema,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)

_NUMBERS = ("int", "long", "float", "double")


def fits(schema: Schema, value: Any) -> bool:
    """A union's default may be of any of its branches. A record's may leave out fields that have a default
    themselves."""
    match schema:
        case UnionSchema():
            return any(fits(branch, value) for branch in schema.branches)
        case RecordSchema():
            return isinstance(value, dict) and all(
                fits(field.schema, value[field.name]) if field.name in value else field.has_default
                for field in schema.fields
            )
        case ArraySchema():
            return isinstance(value, list) and all(fits(schema.items, each) for each in value)
        case MapSchema():
            return isinstance(value, dict) and all(fits(schema.values, each) for each in value.values())
        case EnumSchema():
            return value in schema.symbols
        case FixedSchema():
            return isinstance(value, str)
        case _:
            return _fits_primitive(schema.kind, value)


def _fits_primitive(kind: str, value: Any) -> bool:
    if kind == "null":
        return value is None
    if kind == "boolean":
        return isinstance(value, bool)
    if kind in _NUMBERS:
        return isinstance(value, (int, float)) and not isinstance(value, bool)
    return isinstance(value, str)
