"""Checks for two cases in which protobuf is less strict than it seems."""

from __future__ import annotations

import warnings

from google.protobuf import text_format
from google.protobuf.message import Message

from magnetar.errors import MalformedMetadataError


def checked(value: str) -> str:
    """Returns the string; raises ValueError if it is not one: protobuf returns a proto2 string that is not UTF-8 as
    bytes."""
    if not isinstance(value, str):
        raise ValueError(f"a string is not UTF-8: {value!r:.80}")
    return value


def parse_text(text: str, message: Message) -> None:
    """Fills the message from its text form; raises MalformedMetadataError for an unknown field or a missing one."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # Otherwise an invalid escape sequence only gives a warning.
            text_format.Parse(text, message)
    except (text_format.ParseError, Warning) as error:
        raise MalformedMetadataError(f"not a message of the kind that belongs here: {str(error)[:200]}") from error
    if not message.IsInitialized():
        raise MalformedMetadataError("a required field is missing")
