"""Names and attributes in an Avro schema's JSON."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from magnetar.broker.schemas.avro.schema import PRIMITIVES
from magnetar.errors import InvalidSchemaError

_OF_NAMED = ("type", "name", "namespace", "doc", "aliases")
_OWN = {  # What Avro itself gives a meaning, for each kind; the rest are properties.
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
    """The name with its namespace, and the namespace, which types inside it are in too."""
    name, namespace = document.get("name"), document.get("namespace", enclosing)
    if not isinstance(name, str) or not isinstance(namespace, str):
        raise InvalidSchemaError(f"a {document.get('type')} has a name, which is a string, not {name!r}")
    return _qualified(name, namespace)


def aliases(document: Mapping[str, Any], namespace: str) -> tuple[str, ...]:
    found = listed(document, "aliases", f"{document.get('name')}", default=[])
    return tuple(_qualified(name, namespace)[0] for name in found)


def listed(document: Mapping[str, Any], attribute: str, what: str, *, default: list[str] | None = None) -> list[str]:
    found = document.get(attribute, default)
    if not isinstance(found, list) or not all(isinstance(each, str) for each in found):
        raise InvalidSchemaError(f"{what} has {attribute}, which are a list of names, not {found!r}")
    return found


def unqualified(name: str) -> str:
    return name.rpartition(".")[2]


def _qualified(name: str, namespace: str) -> tuple[str, str]:
    if "." in name:  # It brings its own.
        namespace, _, name = name.rpartition(".")
    checked(name, "a type")
    for part in namespace.split(".") if namespace else ():
        checked(part, "a namespace")
    if not namespace and name in PRIMITIVES:
        raise InvalidSchemaError(f"{name!r} is a type of Avro's own: it cannot be defined")
    return f"{namespace}.{name}" if namespace else name, namespace
