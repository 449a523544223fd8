"""Runs of SEND: everything that is plain and right comes out, and the first frame that is not ends the run."""

from __future__ import annotations

import struct

from hypothesis import given
from hypothesis import strategies as st

from magnetar.wire.pulsar.encode import PING
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.hot_path import scan_sends
from magnetar.wire.pulsar.proto import hot_path_pb2, pulsar_api_pb2
from tests.rows import every_row
from tests.unit.wire.pulsar.samples import golden, headers_and_payload, send_frame

U64 = st.integers(0, 2**64 - 1)
BODY = headers_and_payload()


def test_the_official_clients_sends_are_one_run() -> None:
    sent = [frame for name, frames in golden().items() if name.startswith("send batch") for frame in frames]
    data = b"".join(sent)
    run = scan_sends(data, 0, len(data))
    assert run.end == len(data)
    decoder = FrameDecoder()
    for send, (frame, _) in zip(run.sends, decoder.frames(data, 0, len(data)), strict=True):
        command = frame.command.send
        assert send[:4] == (command.producer_id, command.sequence_id, 0, 3)
        assert data[send[4] : send[4] + send[5]] == frame.headers_and_payload


@given(st.lists(st.tuples(U64, U64, U64, st.integers(1, 2**31 - 1)), max_size=5), st.integers(0, 50))
def test_every_number_comes_out_as_it_went_in(sends: list[tuple[int, int, int, int]], before: int) -> None:
    frames = [
        send_frame(producer_id=producer, sequence_id=sequence, highest_sequence_id=highest, num_messages=messages)
        for producer, sequence, highest, messages in sends
    ]
    data = bytearray(bytes(before) + b"".join(frames) + PING)
    run = scan_sends(data, before, len(data))
    assert run.end == len(data) - len(PING)
    assert [send[:4] for send in run.sends] == sends
    assert all(data[offset : offset + length] == BODY for *_, offset, length in run.sends)


def _damaged() -> bytes:
    frame = bytearray(send_frame())
    frame[-1] ^= 1
    return bytes(frame)


@every_row(
    "other",
    [
        PING,
        send_frame()[:-1],
        send_frame()[:9],
        _damaged(),
        send_frame(is_chunk=True),
        send_frame(marker=True),
        send_frame(txnid_most_bits=0, txnid_least_bits=0),
        send_frame(message_id={"ledgerId": 1, "entryId": 2}),
        send_frame(num_messages=0),
        send_frame(num_messages=-5),
        send_frame(body=BODY[6:]),
        send_frame(body=b""),
        struct.pack(">II", 2**32 - 1, 14) + send_frame()[8:],
        struct.pack(">II", 50, 2**32 - 1) + send_frame()[8:],
        struct.pack(">II", 30, 6) + b"\x08\x06\x32\x02\x08\x01" + BODY[:20],
    ],
)
def test_a_frame_that_is_not_plain_and_right_ends_the_run(other: bytes) -> None:
    data = send_frame() + other
    run = scan_sends(data, 0, len(data))
    assert run.end == len(send_frame())
    assert len(run.sends) == 1


def test_a_frame_beyond_the_limit_ends_the_run() -> None:
    data = send_frame()
    assert len(scan_sends(data, 0, len(data), limit=len(data)).sends) == 1
    assert not scan_sends(data, 0, len(data), limit=len(data) - 1).sends


def test_the_scan_reads_the_fields_of_pulsars_send() -> None:
    ours = hot_path_pb2.PlainSend.DESCRIPTOR.fields_by_name
    theirs = pulsar_api_pb2.CommandSend.DESCRIPTOR.fields_by_name
    assert {name: field.number for name, field in ours.items()} == {name: f.number for name, f in theirs.items()}
    assert ours["num_messages"].default_value == theirs["num_messages"].default_value == 1
