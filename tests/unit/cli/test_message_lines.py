"""Messages as lines of JSON, there and back."""

from __future__ import annotations

import io
import json
import sys

import pytest

from magnetar.cli.message_lines import parse_line, print_message
from magnetar.client import Message, MessageId
from magnetar.errors import MagnetarError


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
    again = parse_line(line, 1)
    assert again.payload == payload
    assert again.options == {"key": "k", "properties": {"a": "b"}, "event_ms": 5}


def test_a_plain_message_is_its_bytes_and_a_line_end(monkeypatch: pytest.MonkeyPatch) -> None:
    assert printed(Message(MessageId(1, 2), "t", b"\xff"), monkeypatch, as_json=False) == b"\xff\n"


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b"x",
        b"[]",
        b"{}",
        b'{"payload":1}',
        b'{"payload_base64":"%"}',
        b'{"payload":"","properties":[]}',
        b'{"payload":"half a pair: \\ud83d"}',
        b"[" * 100_000,
    ],
)
def test_a_line_that_is_no_message_is_named_by_its_number(line: bytes) -> None:
    with pytest.raises(MagnetarError, match="line 7 of the input"):
        parse_line(line, 7)
