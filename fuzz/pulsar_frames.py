"""The decoders of Pulsar's wire protocol and of what brokers store: frames, runs of SEND, entries, batches.

Streams:   whole frames as a broker or client reads a socket: a run of SEND first, then one frame, and so on.
Checked:   besides that nothing but the promised errors comes out: positions only grow, the scan and the decoder agree,
           a command that was decoded can be encoded and is the same again, and no view goes beyond its entry.
"""

from __future__ import annotations

import json
import struct
import zlib
from pathlib import Path

from fuzz.engine import Target
from magnetar.errors import MalformedEntryError, RemoteProtocolError
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar.encode import encode_command, encode_message_head, encode_send_receipts
from magnetar.wire.pulsar.entry import (
    body_offset_of,
    broker_entry_header,
    encode_batched_message,
    messages_in,
    messages_of_batch,
    parse_entry,
)
from magnetar.wire.pulsar.frames import FrameDecoder, decode_command, verify_checksum
from magnetar.wire.pulsar.hot_path import Send, scan_sends
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import ZLIB, SingleMessageMetadata

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "pulsar-frames.json"
_LARGEST_SEED_BYTES = 1_000
_FRAME_BYTES_MAX = 4_096
_MESSAGES_MAX = 1_000
_DECODER = FrameDecoder(_FRAME_BYTES_MAX)
_SIZES = struct.Struct(">II")


def targets() -> list[Target]:
    golden: dict[str, list[str]] = json.loads(GOLDEN.read_text())
    named = [(name, bytes.fromhex(frame)) for name, frames in golden.items() for frame in frames]
    frames = [frame for _, frame in named if len(frame) < _LARGEST_SEED_BYTES]
    sends = [frame for name, frame in named if name.startswith("send ") and len(frame) < _LARGEST_SEED_BYTES]
    answers = [encode_send_receipts(7, 8, [(1, 2, 3)] * 3), encode_message_head(1, 7, 8, 0, 1, [5], 2, 0)]
    streams = [b"".join(frames[at : at + 3]) for at in range(0, len(frames), 3)]
    commands = [frame[8 : 8 + _SIZES.unpack_from(frame)[1]] for frame in [*frames, *answers]]
    bodies = [_body(frame) for frame in sends]
    entries = bodies + [broker_entry_header(9, 1_700_000_000_000) + body for body in bodies]
    return [
        Target("pulsar-stream", [*streams, *answers], _stream, (RemoteProtocolError,), _first_size_is_right),
        Target(
            "pulsar-send-run", [b"".join(sends), sends[0] * 3], _stream, (RemoteProtocolError,), _begins_with_a_send
        ),
        Target("pulsar-command", commands, _command, (RemoteProtocolError,)),
        Target("pulsar-entry", entries, _entry, (MalformedEntryError,)),
        Target("pulsar-batch", [_batch(3), _batch(1)], _messages, (MalformedEntryError,)),
        Target("pulsar-zlib", [zlib.compress(_batch(3))], _inflated, (MalformedEntryError,)),
    ]


def _body(frame: bytes) -> bytes:
    return frame[8 + _SIZES.unpack_from(frame)[1] :]


def _first_size_is_right(data: bytes) -> bool:
    return len(data) >= 8 and 4 <= _SIZES.unpack_from(data)[0] <= len(data) - 4


def _begins_with_a_send(data: bytes) -> bool:
    return _first_size_is_right(data) and data[8:11] == b"\x08\x06\x32"


def _stream(data: bytes) -> object:
    position, seen = 0, 0
    while True:
        run = scan_sends(data, position, len(data), _FRAME_BYTES_MAX)
        assert run.end >= position, "a scan went back"
        for send in run.sends:
            position = _agrees(data, position, send)
        assert position == run.end, "a run that is not its frames"
        following = _DECODER.frame_end(data, position, len(data))
        if following is None or following > len(data):
            return seen
        frame = _DECODER.decode(data, position, following)
        assert decode_command(frame.command.SerializeToString()) == frame.command, "another command after a round"
        if frame.headers_and_payload is None:
            encode_command(frame.command)
        seen += 1 + len(run.sends)
        position = following


def _agrees(data: bytes, position: int, send: Send) -> int:
    following = _DECODER.frame_end(data, position, len(data))
    assert following is not None, "a scan went beyond the data"
    frame = _DECODER.decode(data, position, following)
    command = frame.command.send
    numbers = (command.producer_id, command.sequence_id, command.highest_sequence_id, command.num_messages)
    assert numbers == send[:4], "scan and decoder differ"
    assert frame.headers_and_payload == data[send[4] : send[4] + send[5]], "scan and decoder differ in the body"
    assert verify_checksum(data[send[4] : send[4] + send[5]]), "a wrong checksum passed"
    return following


def _command(data: bytes) -> object:
    command = decode_command(data)
    assert decode_command(command.SerializeToString()) == command, "another command after a round"
    return command


def _entry(data: bytes) -> object:
    head = parse_entry(data)
    assert head.body_offset == body_offset_of(data), "two answers to where the body begins"
    assert head.body_offset < head.payload_offset <= len(data), "a payload outside its entry"
    assert messages_in(head.metadata) >= 1
    verify_checksum(data[head.body_offset :])
    return head


def _batch(count: int) -> bytes:
    return b"".join(
        encode_batched_message(SingleMessageMetadata(partition_key=f"k{at}", sequence_id=at), b"body" * at)
        for at in range(count)
    )


def _messages(data: bytes) -> object:
    count = data[0] % 3 + 1 if data else 1
    found = list(messages_of_batch(data, count))
    assert sum(len(message.payload) for message in found) <= len(data), "more came out than was there"
    return found


def _inflated(data: bytes) -> object:
    return decompress(ZLIB, data, len(_batch(3)), _MESSAGES_MAX)
