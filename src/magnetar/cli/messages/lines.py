"""Messages as lines: of standard input for `produce`, of standard output for `consume` and `read`.

Format:    Plain is the payload and a line end. JSON is one object a line: `payload` as text, or `payload_base64` if it
           is not UTF-8; `key`, `properties`, `event_ms`; and in the output also `id`, `topic`, `index`, `publish_ms`,
           `redelivery_count`. `produce --json` takes what `read --json` prints: it ignores the latter, and refuses
           every other field and every wrong type. Output is flushed whenever no more is ready, so that a pipe gets each
           message when it comes.
"""

from __future__ import annotations

import base64
import json
import sys
from dataclasses import dataclass, field
from typing import Any, Final

from magnetar.client import Message
from magnetar.errors import InputLineError

_LINE_SHOWN_MAX: Final = 80
_EVENT_MS_MAX: Final = 2**63 - 1  # What Pulsar's Java clients can read.
_TAKEN: Final = ("payload", "payload_base64", "key", "properties", "event_ms")
_IGNORED: Final = {"id", "topic", "index", "publish_ms", "redelivery_count"}
"""Printed by `read --json`; of the message that was read, not of the one to be sent."""


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


def payload_fields(payload: bytes) -> dict[str, str]:
    """`payload` as text, or `payload_base64` if it is not UTF-8."""
    try:
        return {"payload": payload.decode("utf-8")}
    except UnicodeDecodeError:
        return {"payload_base64": base64.b64encode(payload).decode("ascii")}


def _document(message: Message) -> dict[str, Any]:
    found: dict[str, Any] = {"id": str(message.id), "topic": message.topic, **payload_fields(message.payload)}
    if message.key is not None:
        found["key"] = message.key
    if message.properties:
        found["properties"] = dict(message.properties)
    if message.event_ms:
        found["event_ms"] = message.event_ms
    if message.index is not None:
        found["index"] = message.index
    return found | {"publish_ms": message.publish_ms, "redelivery_count": message.redelivery_count}


def parse_line(line: bytes) -> ToSend:
    """Parses a line of JSON. InputLineError says what is wrong with it."""
    try:
        found = json.loads(line)
    except ValueError as error:
        raise _wrong(f"it is not JSON: {error}", line) from None
    except RecursionError:
        raise _wrong("its brackets are nested too deeply", line) from None
    if not isinstance(found, dict):
        raise _wrong("it is not a JSON object", line)
    if unknown := sorted(found.keys() - {*_TAKEN, *_IGNORED}):
        raise _wrong(f"unknown field {unknown[0]!r}; the fields are {', '.join(_TAKEN)}", line)
    return ToSend(_payload(found, line), _options(found, line))


def _options(found: dict[str, Any], line: bytes) -> dict[str, Any]:
    """For `Producer.send_nowait`. A field that is null counts as absent."""
    options: dict[str, Any] = {}
    if (key := found.get("key")) is not None:
        if not isinstance(key, str):
            raise _wrong(f"key must be a string, not {json.dumps(key)}", line)
        options["key"] = key
    if (properties := found.get("properties")) is not None:
        if not isinstance(properties, dict) or not all(isinstance(value, str) for value in properties.values()):
            raise _wrong("properties must be an object of strings", line)
        options["properties"] = properties
    if (event_ms := found.get("event_ms")) is not None:
        if isinstance(event_ms, bool) or not isinstance(event_ms, int) or not 0 <= event_ms <= _EVENT_MS_MAX:
            raise _wrong(f"event_ms must be an integer from 0 to {_EVENT_MS_MAX}, not {json.dumps(event_ms)}", line)
        options["event_ms"] = event_ms
    return options


def _payload(found: dict[str, Any], line: bytes) -> bytes:
    encoded, text = found.get("payload_base64"), found.get("payload")
    if (encoded is None) == (text is None):
        raise _wrong("it needs either payload or payload_base64", line)
    if encoded is not None:
        if not isinstance(encoded, str):
            raise _wrong(f"payload_base64 must be a string, not {json.dumps(encoded)}", line)
        try:
            return base64.b64decode(encoded, validate=True)
        except ValueError as error:  # Also for characters outside ASCII.
            raise _wrong(f"payload_base64 is not base64: {error}", line) from None
    if not isinstance(text, str):
        raise _wrong(f"payload must be a string, not {json.dumps(text)}", line)
    try:
        return text.encode("utf-8")
    except UnicodeEncodeError as error:
        raise _wrong(f"the payload is not text ({error.reason}): use payload_base64", line) from None


def _wrong(why: str, line: bytes) -> InputLineError:
    shown = line[:_LINE_SHOWN_MAX].decode("utf-8", "replace") + ("…" if len(line) > _LINE_SHOWN_MAX else "")
    return InputLineError(f"{why} (in {shown})" if line else "it is empty")
