"""One frame at a time: the official client's, and those that no client should send."""

from __future__ import annotations

import struct

import pytest

from magnetar.errors import RemoteProtocolError
from magnetar.wire.pulsar.encode import PING, encode_command
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe
from tests.rows import every_row
from tests.unit.wire.pulsar.samples import encode_command_head, golden, send_frame, spoiled

FRAMES = [(name, frame) for name, frames in golden().items() for frame in frames]
DECODER = FrameDecoder()


def _decode(data: bytes) -> list[BaseCommand]:
    return [frame.command for frame, _ in DECODER.frames(data, 0, len(data))]


@every_row(("name", "data"), FRAMES)
def test_a_frame_of_the_official_client_is_the_same_bytes_after_a_round(name: str, data: bytes) -> None:
    ((frame, following),) = DECODER.frames(data, 0, len(data))
    body = b"" if frame.headers_and_payload is None else bytes(frame.headers_and_payload)
    assert following == len(data)
    assert BaseCommand.Type.Name(frame.command.type).lower() == name.split(" ")[0]
    assert encode_command_head(frame.command, len(body)) + body == data


def test_the_official_client_says_what_it_was_asked_to() -> None:
    frames = golden()
    (subscribe,) = _decode(frames["subscribe keyshared"][0])
    assert subscribe.subscribe.subType == CommandSubscribe.Key_Shared
    assert subscribe.subscribe.initialPosition == CommandSubscribe.Earliest
    acks = [_decode(frame)[0].ack for name, found in frames.items() if name.startswith("ack ") for frame in found]
    assert [0b101] in [list(ack.message_id[0].ack_set) for ack in acks]  # The second of three.
    (seek,) = _decode(frames["seek exclusive"][0])
    assert seek.seek.message_id.ledgerId == 2**64 - 1


def test_frames_are_found_one_behind_the_other_and_the_rest_is_left() -> None:
    data = PING + send_frame() + PING[:7]
    found = list(DECODER.frames(data, 0, len(data)))
    assert [frame.command.type for frame, _ in found] == [BaseCommand.PING, BaseCommand.SEND]
    rest = found[-1][1]
    assert DECODER.frame_end(data, rest, len(data)) == rest + len(PING)
    assert DECODER.frame_end(data, rest, rest + 3) is None


def test_a_frame_beyond_the_limit_is_refused_before_it_is_there() -> None:
    decoder = FrameDecoder(frame_bytes_max=len(PING))
    assert decoder.frame_end(PING, 0, len(PING)) == len(PING)
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        decoder.frame_end(struct.pack(">I", len(PING) - 3), 0, 4)
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        decoder.frame_end(b"\xff\xff\xff\xff", 0, 4)


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (struct.pack(">I", 3) + b"abc", "too short"),
        (struct.pack(">II", 6, 3) + b"\x08\x12", "does not fit"),
        (struct.pack(">II", 6, 0xFFFFFFFF) + b"\x08\x12", "does not fit"),
        (struct.pack(">II", 6, 2) + b"\xff\xff", "not protobuf"),
        (struct.pack(">II", 7, 3) + b"\x08\x99\x01", "unknown type"),
        (struct.pack(">II", 4, 0), "unknown type"),
        (struct.pack(">II", 6, 2) + b"\x08\x12", "without its field"),
        (struct.pack(">II", 10, 6) + b"\x08\x06\x32\x02\x08\x01", "sequence_id"),
    ],
)
def test_a_frame_that_is_none_is_refused(data: bytes, what: str) -> None:
    with pytest.raises(RemoteProtocolError, match=what):
        _decode(data)


def test_commands_of_every_type_name_their_own_field() -> None:
    fields = BaseCommand.DESCRIPTOR.fields_by_number
    for number in BaseCommand.Type.values():
        assert fields[number].message_type is not None
    command = BaseCommand(type=BaseCommand.PONG)
    command.pong.SetInParent()
    assert _decode(encode_command(command)) == [command]


def test_a_command_with_a_string_that_is_not_utf_8_is_refused() -> None:
    subscribe = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = subscribe.subscribe
    request.topic, request.subscription, request.subType = "t", "s", CommandSubscribe.Failover
    request.consumer_id = request.request_id = 1
    request.metadata.add(key="a", value="text")
    assert _decode(encode_command(subscribe)) == [subscribe]
    request.consumer_name = "KKKK"
    with pytest.raises(RemoteProtocolError, match="consumer_name is not UTF-8"):
        _decode(spoiled(encode_command(subscribe)))
    request.consumer_name = "c"
    request.metadata.add(key="b", value="KKKK")
    with pytest.raises(RemoteProtocolError, match="value is not UTF-8"):
        _decode(spoiled(encode_command(subscribe)))


def test_a_list_of_names_one_of_which_is_not_utf_8_is_refused() -> None:
    answer = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
    answer.getTopicsOfNamespaceResponse.request_id = 1
    answer.getTopicsOfNamespaceResponse.topics.extend(["t", "KKKK"])
    with pytest.raises(RemoteProtocolError, match="topics is not UTF-8"):
        _decode(spoiled(encode_command(answer)))
