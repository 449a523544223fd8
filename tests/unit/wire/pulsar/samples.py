"""Frames of the official client, as tests/golden/capture_pulsar_frames.py caught them, and frames made here."""

from __future__ import annotations

import json
from pathlib import Path

from magnetar.wire.pulsar.frames import SIZE_BYTES, SIZES, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSend, MessageMetadata

GOLDEN = Path(__file__).resolve().parents[3] / "golden" / "pulsar-frames.json"


def golden() -> dict[str, list[bytes]]:
    """By command and what the client was doing."""
    captured: dict[str, list[str]] = json.loads(GOLDEN.read_text())
    return {name: [bytes.fromhex(frame) for frame in frames] for name, frames in captured.items()}


def headers_and_payload(payload: bytes = b"payload", **fields: object) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, **fields)  # type: ignore[arg-type]
    return with_checksum(metadata.SerializeToString(), payload)


def encode_command_head(command: BaseCommand, body_length: int) -> bytes:
    """Encodes a frame up to its headers_and_payload, which has `body_length` bytes."""
    body = command.SerializeToString()
    return SIZES.pack(SIZE_BYTES + len(body) + body_length, len(body)) + body


def send_frame(body: bytes | None = None, **fields: object) -> bytes:
    send = CommandSend(**{"producer_id": 3, "sequence_id": 300_000, **fields})  # type: ignore[arg-type]
    body = headers_and_payload() if body is None else body
    return encode_command_head(BaseCommand(type=BaseCommand.SEND, send=send), len(body)) + body


def spoiled(data: bytes) -> bytes:
    """Puts bytes that are not UTF-8 in the place of each KKKK: protobuf takes them for a string anyway."""
    assert b"KKKK" in data
    return data.replace(b"KKKK", b"\xff\xfe\x80k")
