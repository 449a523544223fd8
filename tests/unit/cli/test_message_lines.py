"""Messages as lines of JSON, there and back."""

from __future__ import annotations

import io
import json
import sys

import pytest

from magnetar.cli.messages.lines import parse_line, print_message
from magnetar.client import Message, MessageId
from magnetar.errors import InputLineError
from tests.rows import every_row


def printed(message: Message, monkeypatch: pytest.MonkeyPatch, *, as_json: bool) -> bytes:
    output = io.TextIOWrapper(io.BytesIO())
    monkeypatch.setattr(sys, "stdout", output)
    print_message(message, as_json)
    return output.buffer.getvalue()  # type: ignore[attr-defined, no-any-return]


@pytest.mark.parametrize("payload", ["grüße".encode(), b"\xff\x00", b""])
def test_what_is_printed_as_json_can_be_sent_again(payload: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    message = Message(MessageId(1, 2, 3), "t", payload, key="k", properties={"a": "b"}, event_ms=5)
    line = printed(message, monkeypatch, as_json=True)
    assert json.loads(line)["id"] == "1:2:-1:3"
    again = parse_line(line)
    assert again.payload == payload
    assert again.options == {"key": "k", "properties": {"a": "b"}, "event_ms": 5}


def test_a_plain_message_is_its_bytes_and_a_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(Message(MessageId(1, 2), "t", b"\xff"), monkeypatch, as_json=False) == b"\xff\n"


@every_row(
    ("line", "why"),
    [
        (b"", "it is empty"),
        (b"x", "not JSON"),
        (b"[]", "not a JSON object"),
        (b"{}", "either payload or payload_base64"),
        (b'{"payload":"","payload_base64":""}', "either payload or payload_base64"),
        (b'{"payload":1}', "payload must be a string, not 1"),
        (b'{"payload_base64":"%"}', "not base64"),
        (b'{"payload_base64":"\xc3\xbc"}', "not base64"),
        (b'{"payload_base64":7}', "payload_base64 must be a string, not 7"),
        (b'{"payload":"","properties":[]}', "properties must be an object of strings"),
        (b'{"payload":"","properties":{"a":1}}', "properties must be an object of strings"),
        (b'{"payload":"","key":5}', "key must be a string, not 5"),
        (b'{"payload":"","event_ms":true}', "event_ms must be an integer"),
        (b'{"payload":"","event_ms":1.5}', "event_ms must be an integer"),
        (b'{"payload":"","event_ms":"1"}', "event_ms must be an integer"),
        (b'{"payload":"","event_ms":-1}', "event_ms must be an integer"),
        (b'{"payload":"","event_ms":9223372036854775808}', "event_ms must be an integer"),
        (b'{"payload":"","keyy":"k"}', "unknown field 'keyy'"),
        (b'{"payload":"half a pair: \\ud83d"}', "not text"),
        (b"[" * 100_000, "nested too deeply"),
    ],
)
def test_a_line_that_is_no_message_is_refused_with_the_reason(line: bytes, why: str) -> None:
    with pytest.raises(InputLineError, match=why):
        parse_line(line)


@pytest.mark.parametrize("line", [b'{"payload":"","key":null}', b'{"payload":"","properties":null,"event_ms":null}'])
def test_a_field_that_is_null_counts_as_absent(line: bytes) -> None:
    assert parse_line(line).options == {}
