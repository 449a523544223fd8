"""Messages as lines: of standard input for `produce`, of standard output for `consume` and `read`.

Plain:     the payload and a line end.
JSON:      one object a line: `payload` as text, or `payload_base64` if it is no UTF-8; `key`, `properties`, `event_ms`;
           and in what is printed also `id`, `publish_ms`, `redelivery_count`, `topic`. What `read --json` prints,
           `produce --json` takes.
Output:    flushed whenever nothing more is at hand, so that a pipe sees each message when it comes.
"""

from __future__ import annotations

import base64
import binascii
import json
import sys
from dataclasses import dataclass, field
from typing import Any

from magnetar.client import Message
from magnetar.errors import MagnetarError

_LINE_SHOWN_MAX = 80


@dataclass(frozen=True, slots=True)
class ToSend:
    payload: bytes
    options: dict[str, Any] = field(default_factory=dict)
    """For `Producer.send_nowait`."""


def print_message(message: Message, as_json: bool) -> None:
    if not as_json:
        sys.stdout.buffer.write(message.payload + b"\n")
        return
    sys.stdout.buffer.write(json.dumps(_document(message)).encode() + b"\n")


def flush() -> None:
    sys.stdout.buffer.flush()


def _document(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"id": str(message.id), "topic": message.topic}
    try:
        found["payload"] = message.payload.decode("utf-8")
    except UnicodeDecodeError:
        found["payload_base64"] = base64.b64encode(message.payload).decode("ascii")
    if message.key is not None:
        found["key"] = message.key
    if message.properties:
        found["properties"] = dict(message.properties)
    if message.event_ms:
        found["event_ms"] = message.event_ms
    if message.index is not None:
        found["index"] = message.index
    return found | {"publish_ms": message.publish_ms, "redelivery_count": message.redelivery_count}


def parse_line(line: bytes, number: int) -> ToSend:
    """A line of JSON. MagnetarError says which one is wrong, and why."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _wrong(number, f"not JSON: {error}", line) from None
    except RecursionError:
        raise _wrong(number, "brackets within brackets beyond all measure", line) from None
    if not isinstance(found, dict):
        raise _wrong(number, "not an object", line)
    options: dict[str, Any] = {}
    if isinstance(key := found.get("key"), str):
        options["key"] = key
    properties = found.get("properties", {})
    if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
        raise _wrong(number, "properties must be an object of strings", line)
    if properties:
        options["properties"] = properties
    if isinstance(event_ms := found.get("event_ms"), int):
        options["event_ms"] = event_ms
    return ToSend(_payload(found, number, line), options)


def _payload(found: dict[str, Any], number: int, line: bytes) -> bytes:
    encoded, text = found.get("payload_base64"), found.get("payload")
    if isinstance(encoded, str):
        try:
            return base64.b64decode(encoded, validate=True)
        except binascii.Error as error:
            raise _wrong(number, f"payload_base64 is not base64: {error}", line) from None
    if not isinstance(text, str):
        raise _wrong(number, 'it needs "payload", a string, or "payload_base64"', line)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _wrong(number, f"the payload is no text: {error.reason}; use payload_base64", line) from None


def _wrong(number: int, why: str, line: bytes) -> MagnetarError:
    return MagnetarError(f"line {number} of the input: {why}: {line[:_LINE_SHOWN_MAX].decode('utf-8', 'replace')}")
