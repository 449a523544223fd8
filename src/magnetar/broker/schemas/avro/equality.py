"""Whether two schemas are the same: what Avro compares, and not documentation, aliases or the order of attributes."""

from __future__ import annotations

from typing import Any

from magnetar.broker.schemas.avro.schema import (
    NO_DEFAULT,
    ArraySchema,
    EnumSchema,
    Field,
    FixedSchema,
    MapSchema,
    RecordSchema,
    Schema,
    UnionSchema,
)


def is_same(one: Schema, other: Schema) -> bool:
    return bool(canonical(one) == canonical(other))


def canonical(schema: Schema) -> Any:
    """Nested tuples and dicts that are equal if the schemas are; a record inside itself is its name."""
    return _canonical(schema, {})


def _canonical(schema: Schema, seen: dict[str, None]) -> Any:
    match schema:
        case RecordSchema():
            if schema.name in seen:
                return ("seen", schema.name)
            seen[schema.name] = None
            fields = [_field(each, seen) for each in schema.fields]
            return ("record", schema.name, fields, dict(schema.properties))
        case UnionSchema():
            return ("union", [_canonical(branch, seen) for branch in schema.branches])
        case ArraySchema():
            return ("array", _canonical(schema.items, seen), dict(schema.properties))
        case MapSchema():
            return ("map", _canonical(schema.values, seen), dict(schema.properties))
        case EnumSchema():
            return ("enum", schema.name, schema.symbols, schema.default, dict(schema.properties))
        case FixedSchema():
            return ("fixed", schema.name, schema.size, dict(schema.properties))
        case _:
            return (schema.kind, dict(schema.properties))


def _field(field: Field, seen: dict[str, None]) -> Any:
    default = ("none",) if field.default is NO_DEFAULT else ("default", type(field.default).__name__, field.default)
    return (field.name, _canonical(field.schema, seen), default, field.order, dict(field.properties))
