"""Strings of the protocol that are not UTF-8: protobuf takes them, and hands them out as bytes.

Commands:  refused; they would be names of topics, subscriptions, producers and consumers.
Metadata:  of messages, which the broker does not look into when it takes them: read as Java does it, with replacement
           characters in the place of what is no text. It is delivered as it came.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, TypeAlias

from google.protobuf.message import Message

_Descriptor: TypeAlias = Any  # The stubs have two classes that are the same.


def text_of(value: str | bytes) -> str:
    """A string field of a message's metadata."""
    return value if isinstance(value, str) else value.decode("utf-8", "replace")


def has_strings(kind: _Descriptor, above: tuple[_Descriptor, ...] = ()) -> bool:
    """Whether messages of this kind may have a string, somewhere within."""
    inner = [field.message_type for field in kind.fields if field.message_type is not None]
    within = (*above, kind)
    return any(field.type == field.TYPE_STRING for field in kind.fields) or any(
        has_strings(each, within) for each in inner if each not in within
    )


def field_that_is_no_text(message: Message) -> str | None:
    """The name of a string field that is not UTF-8, within the message or within what it holds."""
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
    """Of a repeated field all of its values, else the one."""
    return (value,) if isinstance(value, str | bytes | Message) else value
