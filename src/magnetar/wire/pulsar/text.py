"""Strings of the protocol that are not UTF-8: protobuf accepts them, and returns them as bytes.

Invariant: in commands they are refused; they would be names of topics, subscriptions, producers and consumers. In the
           metadata of messages, which the broker does not read when it accepts them, they are read as in Java, with
           replacement characters in the place of other bytes. They are delivered as they came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from google.protobuf.message import Message

_Descriptor: TypeAlias = Any  # The stubs have two classes that are the same.


def text_of(value: str | bytes) -> str:
    """Returns a string field of a message's metadata."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def has_strings(kind: _Descriptor, above: tuple[_Descriptor, ...] = ()) -> bool:
    """Reports whether messages of this kind may have a string, at any depth."""
    inner = [field.message_type for field in kind.fields if field.message_type is not None]
    within = (*above, kind)
    return any(field.type == field.TYPE_STRING for field in kind.fields) or any(
        has_strings(each, within) for each in inner if each not in within
    )


def field_that_is_no_text(message: Message) -> str | None:
    """Returns the name of a string field that is not UTF-8, within the message or within its parts."""
    for field, value in message.ListFields():
        if field.type == field.TYPE_STRING:
            if any(isinstance(each, bytes) for each in _each(value)):
                return str(field.name)
        elif field.type == field.TYPE_MESSAGE:
            for each in _each(value):
                if (found := field_that_is_no_text(each)) is not None:
                    return found
    return None


def _each(value: Any) -> Iterable[Any]:
    """Returns all values of a repeated field, otherwise the one."""
    return (value,) if isinstance(value, str | bytes | Message) else value
