"""Two places where protobuf is less strict than it seems."""

from __future__ import annotations

import warnings

from google.protobuf import text_format
from google.protobuf.message import Message

from magnetar.errors import MalformedMetadataError


def checked(value: str) -> str:
    """The string; ValueError if it is not one: a proto2 string that is not UTF-8 is handed out as bytes."""
    if not isinstance(value, str):
        raise ValueError(f"a string is not UTF-8: {value!r:.80}")
    return value


def parse_text(text: str, message: Message) -> None:
    """Fills the message from its text form; an unknown field or a missing one is MalformedMetadataError."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # An escape sequence that does not exist is only warned of otherwise.
            text_format.Parse(text, message)
    except (text_format.ParseError, Warning) as error:
        raise MalformedMetadataError(f"not a message of the kind that belongs here: {str(error)[:200]}") from error
    if not message.IsInitialized():
        raise MalformedMetadataError("a required field is missing")
