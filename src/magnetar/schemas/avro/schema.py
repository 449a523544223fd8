"""The parts of an Avro schema. Records may contain themselves, so these are objects with an identity, not values.

`is_same` compares two schemas as Avro does: without documentation, aliases or the order of attributes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

PRIMITIVES: Final = ("null", "boolean", "int", "long", "float", "double", "bytes", "string")
NO_DEFAULT: Final = object()


@dataclass(slots=True, eq=False)
class Primitive:
    kind: str
    properties: Mapping[str, Any] = field(default_factory=dict)
    """Attributes that are not Avro's own, such as a logical type."""


@dataclass(slots=True, eq=False)
class ArraySchema:
    items: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "array"


@dataclass(slots=True, eq=False)
class MapSchema:
    values: Schema
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "map"


@dataclass(slots=True, eq=False)
class UnionSchema:
    branches: list[Schema]
    kind: str = "union"


@dataclass(slots=True, eq=False)
class EnumSchema:
    name: str
    """The full name, with the namespace."""
    symbols: tuple[str, ...]
    default: str | None = None
    aliases: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "enum"


@dataclass(slots=True, eq=False)
class FixedSchema:
    name: str
    size: int
    aliases: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "fixed"


@dataclass(slots=True, eq=False)
class Field:
    name: str
    schema: Schema
    default: Any = NO_DEFAULT
    """As JSON has it."""
    aliases: tuple[str, ...] = ()
    order: str = "ascending"
    properties: Mapping[str, Any] = field(default_factory=dict)

    @property
    def has_default(self) -> bool:
        return self.default is not NO_DEFAULT


@dataclass(slots=True, eq=False)
class RecordSchema:
    name: str
    fields: list[Field] = field(default_factory=list)
    aliases: tuple[str, ...] = ()
    properties: Mapping[str, Any] = field(default_factory=dict)
    kind: str = "record"


NamedSchema: TypeAlias = EnumSchema | FixedSchema | RecordSchema
Schema: TypeAlias = Primitive | ArraySchema | MapSchema | UnionSchema | EnumSchema | FixedSchema | RecordSchema


def short_name(full_name: str) -> str:
    return full_name.rpartition(".")[2]


def name_of(schema: Schema) -> str:
    """Returns, for messages, the name of a named type, the kind of any other."""
    return schema.name if isinstance(schema, (EnumSchema, FixedSchema, RecordSchema)) else schema.kind


def is_same(one: Schema, other: Schema) -> bool:
    return bool(_canonical(one, {}) == _canonical(other, {}))


def _canonical(schema: Schema, seen: dict[str, None]) -> Any:
    """Returns nested tuples and dicts that are equal if the schemas are; a record inside itself is its name."""
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
