"""Reading single fields of a policy document: absent is None, a wrong type is an error that names the field."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import Any, TypeAlias, TypeVar

from magnetar.errors import MalformedMetadataError

Json: TypeAlias = Mapping[str, Any]
"""A JSON object as it was read."""

Choice = TypeVar("Choice", bound=enum.StrEnum)


def number(value: Json, name: str, default: int) -> int:
    found = optional_number(value, name)
    return default if found is None else found


def optional_number(value: Json, name: str) -> int | None:
    found = value.get(name)
    if found is not None and (isinstance(found, bool) or not isinstance(found, int)):
        raise MalformedMetadataError(f"{name} is {found!r}, which is not an integer")
    return found


def flag(value: Json, name: str) -> bool | None:
    found = value.get(name)
    if found is not None and not isinstance(found, bool):
        raise MalformedMetadataError(f"{name} is {found!r}, which is neither true nor false")
    return found


def nested(value: Json, name: str) -> Json | None:
    found = value.get(name)
    if found is not None and not isinstance(found, Mapping):
        raise MalformedMetadataError(f"{name} is {found!r}, which is not an object")
    return found


def names(value: Json, name: str) -> tuple[str, ...]:
    found = value.get(name)
    if found is None:
        return ()
    if not isinstance(found, (list, tuple)) or not all(isinstance(each, str) for each in found):
        raise MalformedMetadataError(f"{name} is {found!r}, which is not a list of names")
    return tuple(found)


def text(value: Json, name: str) -> str | None:
    found = value.get(name)
    if found is not None and not isinstance(found, str):
        raise MalformedMetadataError(f"{name} is {found!r}, which is not a string")
    return found


def choice(value: Json, name: str, kind: type[Choice]) -> Choice | None:
    found = value.get(name)
    if found is None:
        return None
    try:
        return kind(found)
    except ValueError:
        raise MalformedMetadataError(f"{name} is {found!r}: known are {', '.join(kind)}") from None
