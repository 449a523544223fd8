"""Versions 2 and 3 of ledger metadata: the same protobuf message, as text and as length-prefixed binary.

Format:    binary: varint length | message. Fields that a newer writer added are kept and written back.
           text: the message in protobuf's text form, without the token. An unknown field is an error.
Invariant: a missing ack quorum is the write quorum; without a password there is no digest type; last entry and
           length of a ledger that is not closed are written as -1 and 0 and not read; the creation time is written if
           it was read or asked for, otherwise it is the node's own.
"""

from __future__ import annotations

from typing import Final

from google.protobuf import text_format
from google.protobuf.message import DecodeError, Message
from google.protobuf.unknown_fields import UnknownFieldSet

from magnetar.errors import MalformedMetadataError
from magnetar.ids import EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_metadata import (
    NO_ENTRY,
    NO_TOKEN,
    FormatVersion,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.metadata.bookkeeper.paths import stored_bookie_id
from magnetar.metadata.bookkeeper.proto.ledger_metadata_pb2 import LedgerMetadataFormat
from magnetar.metadata.bookkeeper.proto_strings import checked, parse_text
from magnetar.wire.bookkeeper.digests import DigestType

_VARINT_BYTES_MAX: Final = 5  # A length has 32 bits.


def encode_binary(metadata: LedgerMetadata) -> bytes:
    message = _to_message(metadata)
    message.cToken = metadata.c_token
    body = message.SerializeToString(deterministic=True) + metadata.unknown_fields
    return _varint(len(body)) + body


def encode_text(metadata: LedgerMetadata) -> bytes:
    return text_format.MessageToString(_to_message(metadata)).encode()


def decode_binary(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
    message = LedgerMetadataFormat()
    try:
        message.ParseFromString(_undelimited(body))
    except DecodeError as error:
        raise MalformedMetadataError(f"not a message of ledger metadata: {error}") from error
    return _from_message(ledger_id, message, FormatVersion.BINARY_PROTOBUF, node_created_ms)


def decode_text(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
    message = LedgerMetadataFormat()
    parse_text(body.decode(), message)
    return _from_message(ledger_id, message, FormatVersion.TEXT_PROTOBUF, node_created_ms)


def _to_message(m: LedgerMetadata) -> LedgerMetadataFormat:
    message = LedgerMetadataFormat(
        quorumSize=m.write_quorum,
        ensembleSize=m.ensemble_size,
        length=m.length,
        lastEntryId=m.last_entry_id,
        state=LedgerMetadataFormat.State.Name(m.state.value),
        ackQuorumSize=m.ack_quorum,
        digestType=None if m.digest_type is None else LedgerMetadataFormat.DigestType.Name(m.digest_type.value),
        password=m.password,
        ctime=m.ctime_ms if m.stores_ctime else None,
    )
    for fragment in m.fragments:
        segment = message.segment.add(ensembleMember=fragment.ensemble, firstEntryId=fragment.first_entry_id)
        segment.MergeFromString(fragment.unknown_fields)
    for key, value in m.custom_metadata.items():
        message.customMetadata.add(key=key, value=value)
    return message


def _from_message(
    ledger_id: LedgerId, message: LedgerMetadataFormat, version: FormatVersion, node_created_ms: int
) -> LedgerMetadata:
    unknown = _unknown_fields(message)  # Before anything is read: a number outside an enum's range is among them.
    if not message.IsInitialized():  # The binary parser does not check this.
        raise MalformedMetadataError("a required field is missing")
    state = LedgerState(message.state)
    closed = state is LedgerState.CLOSED
    if closed and not message.HasField("lastEntryId"):
        raise MalformedMetadataError("a closed ledger without its last entry")
    stores_ctime = message.HasField("ctime")
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=message.ensembleSize,
        write_quorum=message.quorumSize,
        ack_quorum=message.ackQuorumSize if message.HasField("ackQuorumSize") else message.quorumSize,
        fragments=tuple(map(_to_fragment, message.segment)),
        state=state,
        last_entry_id=EntryId(message.lastEntryId) if closed else NO_ENTRY,
        length=message.length if closed else 0,
        digest_type=DigestType(message.digestType) if message.HasField("password") else None,
        password=message.password if message.HasField("password") else None,
        ctime_ms=message.ctime if stores_ctime else node_created_ms,
        stores_ctime=stores_ctime,
        custom_metadata={checked(entry.key): entry.value for entry in message.customMetadata},
        c_token=message.cToken if message.HasField("cToken") else NO_TOKEN,
        format_version=version,
        unknown_fields=unknown,
    )


def _to_fragment(segment: LedgerMetadataFormat.Segment) -> Fragment:
    return Fragment(
        EntryId(segment.firstEntryId),
        tuple(stored_bookie_id(checked(member)) for member in segment.ensembleMember),
        _unknown_fields(segment),
    )


def _unknown_fields(message: Message) -> bytes:
    """Returns the fields that our message type lacks, unchanged. A known field of another type or range is an error."""
    found = UnknownFieldSet(message)
    if not len(found):
        return b""
    known = message.DESCRIPTOR.fields_by_number
    for index in range(len(found)):
        if (number := found[index].field_number) in known:
            raise MalformedMetadataError(f"field {known[number].name} has a value of an unknown kind")
    rest = type(message)()
    rest.CopyFrom(message)
    for field in message.DESCRIPTOR.fields:
        rest.ClearField(field.name)
    return rest.SerializePartialToString()


def _varint(number: int) -> bytes:
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    out.append(number)
    return bytes(out)


def _undelimited(body: bytes) -> bytes:
    length = 0
    for index, byte in enumerate(body[:_VARINT_BYTES_MAX]):
        length |= (byte & 0x7F) << (7 * index)
        if byte < 0x80:
            message = body[index + 1 :]
            if len(message) != length:
                raise MalformedMetadataError(f"the length says {length} bytes, but {len(message)} follow")
            return message
    raise MalformedMetadataError("the length of the message is cut off or has more than 32 bits")
