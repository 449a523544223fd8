"""Parses an Avro schema, as strictly as Apache's broker does.

Invariant: defaults are not checked against their type, logical types are not looked at, `$` may be in a name, a name
           may be used before it is defined, and an enum or fixed may be defined twice in the same way. Stricter than
           Apache's: a record may not be defined inside itself; JSON has no comments.
Limits:    `DEPTH_MAX` levels; the caller checks the size of the text.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any, Final, NoReturn

from magnetar.errors import InvalidSchemaError
from magnetar.schemas.avro.schema import (
    NO_DEFAULT,
    PRIMITIVES,
    ArraySchema,
    EnumSchema,
    Field,
    FixedSchema,
    MapSchema,
    NamedSchema,
    Primitive,
    RecordSchema,
    Schema,
    UnionSchema,
    is_same,
    name_of,
    short_name,
)

_OF_NAMED = ("type", "name", "namespace", "doc", "aliases")
_OWN = {  # The attributes that Avro itself defines, for each kind; the rest are properties.
    "record": (*_OF_NAMED, "fields"),
    "enum": (*_OF_NAMED, "symbols", "default"),
    "fixed": (*_OF_NAMED, "size"),
    "array": ("type", "items"),
    "map": ("type", "values"),
    "field": ("name", "type", "doc", "default", "order", "aliases"),
}
_OF_PRIMITIVES = ("type",)


def properties(document: Mapping[str, Any], kind: str) -> dict[str, Any]:
    own = _OWN.get(kind, _OF_PRIMITIVES)
    return {name: value for name, value in document.items() if name not in own}


def checked(name: Any, what: str) -> str:
    if not isinstance(name, str):
        raise InvalidSchemaError(f"{what} has a name, which is a string, not {name!r}")
    first, rest = name[:1], name[1:]
    is_right = (first.isalpha() or first in ("_", "$")) and all(each.isalnum() or each in "_$" for each in rest)
    if not is_right:
        raise InvalidSchemaError(f"{name!r} is not a name for {what}: a letter or _, then letters, digits and _")
    return name


def full_name(document: Mapping[str, Any], enclosing: str) -> tuple[str, str]:
    """Returns the name with its namespace, and the namespace, which types inside it are in too."""
    name, namespace = document.get("name"), document.get("namespace", enclosing)
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise InvalidSchemaError(f"a {document.get('type')} has a name, which is a string, not {name!r}")
    return _qualified(name, namespace)


def aliases_of(document: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    found = listed(document, "aliases", f"{document.get('name')}", default=[])
    return tuple(_qualified(name, namespace)[0] for name in found)


def listed(document: Mapping[str, Any], attribute: str, what: str, *, default: list[str] | None = None) -> list[str]:
    found = document.get(attribute, default)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidSchemaError(f"{what} has {attribute}, which are a list of names, not {found!r}")
    return found


def _qualified(name: str, namespace: str) -> tuple[str, str]:
    if "." in name:  # It has its own namespace.
        namespace, _, name = name.rpartition(".")
    checked(name, "a type")
    for part in namespace.split(".") if namespace else ():
        checked(part, "a namespace")
    if not namespace and name in PRIMITIVES:
        raise InvalidSchemaError(f"{name!r} is one of Avro's own types: it cannot be defined")
    return f"{namespace}.{name}" if namespace else name, namespace


DEPTH_MAX: Final = 100
_ORDERS = ("ascending", "descending", "ignore")


def parse_schema(text: bytes | str) -> Schema:
    """Parses the text; InvalidSchemaError names the error, and the type or field that has it."""
    try:
        document = json.loads(text, parse_constant=_refuse_constant)
    except (ValueError, RecursionError) as error:
        raise InvalidSchemaError(f"an Avro schema is JSON, and this is not: {error}") from None
    parser = _Parser()
    schema = parser.parse(document, "", 0)
    return parser.finished(schema)


def _refuse_constant(name: str) -> NoReturn:
    raise ValueError(f"{name} is not JSON")


class _Forward(Primitive):
    """Stands for a type that is used before it is defined, until everything was read."""

    __slots__ = ("namespace",)

    def __init__(self, name: str, namespace: str) -> None:
        super().__init__(name)
        self.namespace = namespace


class _Parser:
    def __init__(self) -> None:
        self._named: dict[str, NamedSchema] = {}
        self._containers: list[RecordSchema | ArraySchema | MapSchema | UnionSchema] = []
        self._makers: dict[str, Callable[[Mapping[str, Any], str, int], Schema]] = {
            "record": self._record,
            "error": self._record,
            "enum": self._enum,
            "fixed": self._fixed,
            "array": self._array,
            "map": self._map,
        }

    def parse(self, document: Any, namespace: str, depth: int) -> Schema:
        if depth > DEPTH_MAX:
            raise InvalidSchemaError(f"the schema is nested deeper than {DEPTH_MAX} levels")
        if isinstance(document, str):
            return self._reference(document, namespace)
        if isinstance(document, list):
            return self._union(document, namespace, depth)
        if not isinstance(document, dict):
            raise InvalidSchemaError(f"{document!r} is not a schema: write a name, a list or an object")
        kind = document.get("type")
        if not isinstance(kind, str):
            raise InvalidSchemaError(f"a schema has a type, which is a string, not {kind!r}")
        if kind in PRIMITIVES:
            return Primitive(kind, properties(document, kind))
        if kind in self._makers:
            return self._makers[kind](document, namespace, depth)
        return self._reference(kind, namespace)

    def _record(self, document: Mapping[str, Any], namespace: str, depth: int) -> Schema:
        name, inner = full_name(document, namespace)
        aliases = aliases_of(document, inner)
        record = RecordSchema(name, aliases=aliases, properties=properties(document, "record"))
        if name in self._named:
            raise InvalidSchemaError(f"{name} is defined twice")
        self._named[name] = record
        self._containers.append(record)
        fields = document.get("fields")
        if not isinstance(fields, list):
            raise InvalidSchemaError(f"record {name} has no list of fields")
        for each in fields:
            record.fields.append(self._field(each, record, inner, depth))
        return record

    def _field(self, document: Any, record: RecordSchema, namespace: str, depth: int) -> Field:
        if not isinstance(document, dict) or "type" not in document:
            raise InvalidSchemaError(f"a field of record {record.name} is not an object with a name and a type")
        name = checked(document.get("name"), f"a field of record {record.name}")
        if any(name == other.name for other in record.fields):
            raise InvalidSchemaError(f"record {record.name} has two fields {name}")
        order = document.get("order", "ascending")
        if not isinstance(order, str) or order.lower() not in _ORDERS:
            raise InvalidSchemaError(f"field {record.name}.{name} has order {order!r}: one of {', '.join(_ORDERS)}")
        return Field(
            name,
            self.parse(document["type"], namespace, depth + 1),
            document.get("default", NO_DEFAULT),
            tuple(listed(document, "aliases", f"field {record.name}.{name}", default=[])),
            order.lower(),
            properties(document, "field"),
        )

    def _enum(self, document: Mapping[str, Any], namespace: str, _depth: int) -> Schema:
        name, inner = full_name(document, namespace)
        symbols = listed(document, "symbols", f"enum {name}")
        for symbol in symbols:
            checked(symbol, f"a symbol of enum {name}")
        if len(set(symbols)) != len(symbols):
            raise InvalidSchemaError(f"enum {name} has a symbol twice")
        default = document.get("default")
        if default is not None and default not in symbols:
            raise InvalidSchemaError(f"the default of enum {name}, {default!r}, is not one of its symbols")
        aliases = aliases_of(document, inner)
        return self._define(EnumSchema(name, tuple(symbols), default, aliases, properties(document, "enum")))

    def _fixed(self, document: Mapping[str, Any], namespace: str, _depth: int) -> Schema:
        name, inner = full_name(document, namespace)
        size = document.get("size")
        if isinstance(size, bool) or not isinstance(size, int) or size < 0:
            raise InvalidSchemaError(f"fixed {name} has a size, which is a number of bytes, not {size!r}")
        aliases = aliases_of(document, inner)
        return self._define(FixedSchema(name, size, aliases, properties(document, "fixed")))

    def _array(self, document: Mapping[str, Any], namespace: str, depth: int) -> Schema:
        if "items" not in document:
            raise InvalidSchemaError("an array has items")
        items = self.parse(document["items"], namespace, depth + 1)
        array = ArraySchema(items, properties(document, "array"))
        self._containers.append(array)
        return array

    def _map(self, document: Mapping[str, Any], namespace: str, depth: int) -> Schema:
        if "values" not in document:
            raise InvalidSchemaError("a map has values")
        values = self.parse(document["values"], namespace, depth + 1)
        found = MapSchema(values, properties(document, "map"))
        self._containers.append(found)
        return found

    def _union(self, documents: list[Any], namespace: str, depth: int) -> Schema:
        union = UnionSchema([self.parse(each, namespace, depth + 1) for each in documents])
        self._containers.append(union)
        return union

    def _define(self, schema: EnumSchema | FixedSchema) -> Schema:
        known = self._named.setdefault(schema.name, schema)
        if known is not schema and not is_same(known, schema):
            raise InvalidSchemaError(f"{schema.name} is defined twice, and not in the same way")
        return schema

    def _reference(self, name: str, namespace: str) -> Schema:
        return Primitive(name) if name in PRIMITIVES else self._find(name, namespace) or _Forward(name, namespace)

    def _find(self, name: str, namespace: str) -> NamedSchema | None:
        """Looks in the namespace of the use; otherwise, if the name has none itself, outside of all."""
        qualified = f"{namespace}.{name}" if namespace and "." not in name else name
        return self._named.get(qualified) or self._named.get(short_name(name))

    def finished(self, root: Schema) -> Schema:
        for container in self._containers:
            self._replace_forwards(container)
        for container in self._containers:
            if isinstance(container, UnionSchema):
                _check_union(container)
        return self._known(root)

    def _replace_forwards(self, container: RecordSchema | ArraySchema | MapSchema | UnionSchema) -> None:
        if isinstance(container, RecordSchema):
            for field in container.fields:
                field.schema = self._known(field.schema)
        elif isinstance(container, ArraySchema):
            container.items = self._known(container.items)
        elif isinstance(container, MapSchema):
            container.values = self._known(container.values)
        else:
            container.branches = [self._known(branch) for branch in container.branches]

    def _known(self, schema: Schema) -> Schema:
        if not isinstance(schema, _Forward):
            return schema
        found = self._find(schema.kind, schema.namespace)
        if found is None:
            raise InvalidSchemaError(f"{schema.kind!r} is not a type: it is neither one of Avro's nor defined here")
        return found


def _check_union(union: UnionSchema) -> None:
    seen: set[str] = set()
    for branch in union.branches:
        if isinstance(branch, UnionSchema):
            raise InvalidSchemaError("a union has a union directly inside it")
        name = name_of(branch)
        if name in seen:
            raise InvalidSchemaError(f"a union has {name} twice")
        seen.add(name)
