"""Encodes frames: the frequent ones by hand, every other by protobuf.

Format:    a hand-made frame is a few constant tags with varints between them; the bytes are those that protobuf makes,
           and a test compares them. Ids of -1 travel as 2^64 - 1, which is what `varint` does. For SEND and MESSAGE
           only the part before headers_and_payload is made; the caller writes that after it, uncopied.
           A varint has seven bits per byte, lowest first; the top bit says that more follow. Two tables of 14 bits each
           (1.5 MB, made in a few milliseconds) make most values one look-up, and any other a few.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Final, cast

from magnetar.errors import LocalProtocolError
from magnetar.wire.pulsar.frames import SIZE_BYTES, SIZES, missing_fields
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAckResponse,
    CommandError,
    CommandSendError,
    ServerError,
)

_U64 = 2**64 - 1
_LAST = [bytes((value,)) for value in range(0x80)]
_MORE = [bytes((value | 0x80,)) for value in range(0x80)]
LAST_DIGITS = _LAST + [_MORE[low] + _LAST[high] for high in range(1, 0x80) for low in range(0x80)]
LOWER_DIGITS = [_MORE[low] + _MORE[high] for high in range(0x80) for low in range(0x80)]
"""Digits of 14 bits: two bytes that say that more follow. `LAST_DIGITS` say that none do, in one byte if possible."""


def varint(value: int) -> bytes:
    """Encodes an unsigned value below 2^64; a negative one as in int64 and int32 fields, in ten bytes."""
    if 0 <= value < 0x4000:
        return LAST_DIGITS[value]
    if 0 <= value < 0x1000_0000:
        return LOWER_DIGITS[value & 0x3FFF] + LAST_DIGITS[value >> 14]
    return _long_varint(value & _U64)


def _long_varint(value: int) -> bytes:
    out = b""
    while value >= 0x4000:
        out += LOWER_DIGITS[value & 0x3FFF]
        value >>= 14
    return out + LAST_DIGITS[value]


_pack_sizes = SIZES.pack


def encode_command(command: BaseCommand) -> bytes:
    """Encodes a frame that ends with its command."""
    if not command.IsInitialized():
        raise LocalProtocolError(f"a command without {missing_fields(command)}")
    return _framed(command.SerializeToString())


def encode_send_receipt(
    producer_id: int, sequence_id: int, highest_sequence_id: int, ledger_id: int, entry_id: int
) -> bytes:
    return encode_send_receipts(ledger_id, entry_id, ((producer_id, sequence_id, highest_sequence_id),))


def encode_send_receipts(ledger_id: int, first_entry_id: int, receipts: Iterable[tuple[int, int, int]]) -> bytes:
    """Encodes receipts for entries that follow one another in a ledger, to be written at once.

    Each is producer_id, sequence_id, highest_sequence_id. None of them is longer than 69 bytes, so that every length
    inside is one byte.
    """
    pack, varint_of = _pack_sizes, varint
    frames: list[bytes] = []
    ledger = varint(ledger_id)
    for entry_id, (producer_id, sequence_id, highest_sequence_id) in enumerate(receipts, first_entry_id):
        producer, sequence = varint_of(producer_id), varint_of(sequence_id)
        highest, entry = varint_of(highest_sequence_id), varint_of(entry_id)
        id_length = len(ledger) + len(entry) + 2
        length = len(producer) + len(sequence) + len(highest) + id_length + 5
        frames += (
            pack(length + 8, length + 4),
            b"\x08\x07\x3a",
            varint_of(length),
            b"\x08",
            producer,
            b"\x10",
            sequence,
        )
        frames += (b"\x1a", varint_of(id_length), b"\x08", ledger, b"\x10", entry, b"\x20", highest)
    return b"".join(frames)


def encode_send_head(
    producer_id: int, sequence_id: int, highest_sequence_id: int, messages: int, body_length: int
) -> bytes:
    """Encodes a producer's SEND up to its headers_and_payload. `highest_sequence_id` 0 is left out, as is 1 message."""
    send = b"\x08%b\x10%b" % (varint(producer_id), varint(sequence_id))
    if messages != 1:
        send += b"\x18" + varint(messages)
    if highest_sequence_id:
        send += b"\x30" + varint(highest_sequence_id)
    size = len(send) + 4
    return b"%b\x08\x06\x32%b%b" % (_pack_sizes(SIZE_BYTES + size + body_length, size), varint(size - 4), send)


def encode_message_head(
    consumer_id: int,
    ledger_id: int,
    entry_id: int,
    partition: int,
    redelivery_count: int,
    ack_set: Sequence[int] | None,
    consumer_epoch: int | None,
    body_length: int,
) -> bytes:
    """Encodes MESSAGE up to its headers_and_payload, which has `body_length` bytes. `partition` -1 is left out, as is
    no redelivery and no `consumer_epoch`; `ack_set` is for a batch of which some messages are acknowledged already."""
    message_id = b"\x08%b\x10%b" % (varint(ledger_id), varint(entry_id))
    if partition >= 0:
        message_id += b"\x18" + varint(partition)
    message = b"\x08%b\x12%b%b" % (varint(consumer_id), varint(len(message_id)), message_id)
    if redelivery_count:
        message += b"\x18" + varint(redelivery_count)
    if ack_set:
        message += b"".join([b"\x20" + varint(word) for word in ack_set])
    if consumer_epoch is not None:
        message += b"\x28" + varint(consumer_epoch)
    length = varint(len(message))
    size = len(message) + len(length) + 3
    return b"%b\x08\x09\x4a%b%b" % (_pack_sizes(SIZE_BYTES + size + body_length, size), length, message)


def encode_ack_response(consumer_id: int, request_id: int) -> bytes:
    """Encodes the receipt of an acknowledgement that is durable. A refused one: `encode_ack_error`."""
    response = b"\x08%b\x30%b" % (varint(consumer_id), varint(request_id))
    return _framed(b"\x08\x26\xb2\x02%b%b" % (varint(len(response)), response))


def encode_ack_error(consumer_id: int, request_id: int, error: int, message: str) -> bytes:
    refused = CommandAckResponse(
        consumer_id=consumer_id, request_id=request_id, error=cast("ServerError", error), message=message
    )
    return encode_command(BaseCommand(type=BaseCommand.ACK_RESPONSE, ackResponse=refused))


def encode_success(request_id: int) -> bytes:
    success = b"\x08" + varint(request_id)
    return _framed(b"\x08\x0d\x6a%b%b" % (varint(len(success)), success))


def encode_error(request_id: int, error: int, message: str) -> bytes:
    """Encodes the refusal of a request; `error` is a `ServerError`."""
    refused = CommandError(request_id=request_id, error=cast("ServerError", error), message=message)
    return encode_command(BaseCommand(type=BaseCommand.ERROR, error=refused))


def encode_send_error(producer_id: int, sequence_id: int, error: int, message: str) -> bytes:
    """Encodes the refusal of one SEND."""
    refused = CommandSendError(
        producer_id=producer_id, sequence_id=sequence_id, error=cast("ServerError", error), message=message
    )
    return encode_command(BaseCommand(type=BaseCommand.SEND_ERROR, send_error=refused))


def encode_flow(consumer_id: int, permits: int) -> bytes:
    flow = b"\x08%b\x10%b" % (varint(consumer_id), varint(permits))
    return _framed(b"\x08\x0b\x5a%b%b" % (varint(len(flow)), flow))


def _framed(command: bytes) -> bytes:
    return _pack_sizes(SIZE_BYTES + len(command), len(command)) + command


PING: Final = _framed(b"\x08\x12\x92\x01\x00")
PONG: Final = _framed(b"\x08\x13\x9a\x01\x00")
