"""Frames made by hand are the bytes that protobuf makes."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import LocalProtocolError
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.encode import varint
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from tests.rows import every_row
from tests.unit.wire.pulsar.samples import encode_command_head, golden

U64 = st.integers(0, 2**64 - 1)
U32 = st.integers(0, 2**32 - 1)
WORDS = st.lists(st.integers(-(2**63), 2**63 - 1), max_size=40)


def _unsigned(value: int) -> int:
    return value & 2**64 - 1


@given(st.integers(-(2**63), 2**64 - 1))
def test_an_integer_is_written_as_protobuf_writes_it(value: int) -> None:
    expected = api.CommandFlow(consumer_id=_unsigned(value), messagePermits=0).SerializePartialToString()
    assert b"\x08" + varint(value) + b"\x10\x00" == expected


@every_row("value", [0, 0x7F, 0x80, 0x3FFF, 0x4000, 0xFFF_FFFF, 0x1000_0000, 2**42, 2**63, 2**64 - 1])
def test_an_integer_at_the_edge_of_a_length_is_right(value: int) -> None:
    test_an_integer_is_written_as_protobuf_writes_it.hypothesis.inner_test(value)  # type: ignore[attr-defined]


@given(U64, U64, U64, st.integers(-1, 2**63 - 1), st.integers(-1, 2**63 - 1))
def test_a_receipt_is_what_protobuf_makes(producer: int, sequence: int, highest: int, ledger: int, entry: int) -> None:
    command = BaseCommand(type=BaseCommand.SEND_RECEIPT)
    receipt = command.send_receipt
    receipt.producer_id, receipt.sequence_id, receipt.highest_sequence_id = producer, sequence, highest
    receipt.message_id.ledgerId, receipt.message_id.entryId = _unsigned(ledger), _unsigned(entry)
    made = encode.encode_send_receipt(producer, sequence, highest, ledger, entry)
    assert made == encode.encode_command(command)


def test_receipts_of_a_run_are_single_ones_one_behind_the_other() -> None:
    receipts = [(1, 5, 9), (2, 0, 0), (1, 10, 10)]
    single = [encode.encode_send_receipt(*receipt, 7, 40 + at) for at, receipt in enumerate(receipts)]
    assert encode.encode_send_receipts(7, 40, receipts) == b"".join(single)
    assert encode.encode_send_receipts(7, 40, []) == b""


@given(U64, U64, U64, st.integers(-1, 2**31 - 1), U32, st.none() | WORDS, st.none() | U64, st.integers(0, 5 << 20))
def test_the_head_of_a_message_is_what_protobuf_makes(
    consumer: int,
    ledger: int,
    entry: int,
    partition: int,
    redeliveries: int,
    ack_set: Sequence[int] | None,
    epoch: int | None,
    length: int,
) -> None:
    command = BaseCommand(type=BaseCommand.MESSAGE)
    message = command.message
    message.consumer_id, message.message_id.ledgerId, message.message_id.entryId = consumer, ledger, entry
    if partition >= 0:
        message.message_id.partition = partition
    if redeliveries:
        message.redelivery_count = redeliveries
    message.ack_set.extend(ack_set or ())
    if epoch is not None:
        message.consumer_epoch = epoch
    made = encode.encode_message_head(consumer, ledger, entry, partition, redeliveries, ack_set, epoch, length)
    assert made == encode_command_head(command, length)


@given(U64, U64, U64, st.integers(1, 2**31 - 1), st.integers(0, 5 << 20))
def test_the_head_of_a_send_is_what_protobuf_makes(
    producer: int, sequence: int, highest: int, messages: int, length: int
) -> None:
    command = BaseCommand(type=BaseCommand.SEND)
    command.send.producer_id, command.send.sequence_id = producer, sequence
    if messages != 1:
        command.send.num_messages = messages
    if highest:
        command.send.highest_sequence_id = highest
    made = encode.encode_send_head(producer, sequence, highest, messages, length)
    assert made == encode_command_head(command, length)


def test_the_head_of_a_send_is_what_the_official_client_sends() -> None:
    (frame,) = golden()["send batch none"]
    (decoded, _), *_ = FrameDecoder().frames(frame, 0, len(frame))
    assert decoded.headers_and_payload is not None
    send = decoded.command.send
    head = encode.encode_send_head(send.producer_id, send.sequence_id, 0, 3, len(decoded.headers_and_payload))
    assert frame.startswith(head)


@given(U64, U64, U32)
def test_small_answers_are_what_protobuf_makes(consumer: int, request: int, permits: int) -> None:
    ack = BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse={"consumer_id": consumer, "request_id": request})
    assert encode.encode_ack_response(consumer, request) == encode.encode_command(ack)
    success = BaseCommand(type=BaseCommand.SUCCESS, success={"request_id": request})
    assert encode.encode_success(request) == encode.encode_command(success)
    flow = BaseCommand(type=BaseCommand.FLOW, flow={"consumer_id": consumer, "messagePermits": permits})
    assert encode.encode_flow(consumer, permits) == encode.encode_command(flow)


def test_refusals_carry_their_error_and_text() -> None:
    data = (
        encode.encode_error(5, api.TopicNotFound, "no such topic")
        + encode.encode_send_error(1, 2, api.ChecksumError, "damaged")
        + encode.encode_ack_error(3, 4, api.MetadataError, "not stored")
        + encode.PING
        + encode.PONG
    )
    error, send_error, ack, ping, pong = (frame.command for frame, _ in FrameDecoder().frames(data, 0, len(data)))
    assert (error.error.request_id, error.error.error, error.error.message) == (5, 11, "no such topic")
    assert (send_error.send_error.sequence_id, send_error.send_error.error) == (2, 9)
    assert (ack.ackResponse.request_id, ack.ackResponse.error) == (4, 1)
    assert (ping.type, pong.type) == (BaseCommand.PING, BaseCommand.PONG)
    assert golden()["pong plain"] == [encode.PONG]


def test_a_command_without_a_required_field_is_not_sent() -> None:
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic = "t"
    with pytest.raises(LocalProtocolError, match="request_id"):
        encode.encode_command(command)
