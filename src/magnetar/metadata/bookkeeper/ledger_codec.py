"""Ledger metadata as bytes: a header line that names the version, and a body in that version's form.

Format:    "BookieMetadataFormatVersion" TAB version LF body
           1: lines of text: write quorum LF ensemble size LF length LF
              per fragment: first entry TAB bookie TAB bookie … LF
              closed: last entry TAB "CLOSED"; in recovery: "-102" TAB "CLOSED"; open: nothing
              It has no ack quorum (which is then the write quorum), digest type, password, creation time, custom
              metadata and token.
           2: protobuf's text form of the same message as 3, without the token. An unknown field is an error.
           3: varint length | binary protobuf. Fields that a newer writer added are kept and written back.
Invariant: for any bytes, `decode` returns metadata whose invariants hold, or raises MalformedMetadataError with the
           reason, in time and memory bounded by `VALUE_BYTES_MAX`.
           In 2 and 3, a missing ack quorum is the write quorum; without a password there is no digest type; last entry
           and length of a ledger that is not closed are written as -1 and 0 and not read; the creation time is written
           if it was read or asked for, otherwise it is the node's own.
"""

from __future__ import annotations

import re
from collections.abc import Callable
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

VALUE_BYTES_MAX: Final = 2**20
"""ZooKeeper's own limit for a value, by default; a longer one is not ledger metadata."""

_HEADER = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")
_CLOSED: Final = "CLOSED"
_IN_RECOVERY_ENTRY: Final = -102
_NUMBER = re.compile(r"[+-]?[0-9]{1,19}")
_LINE_END = re.compile(r"\r\n|\r|\n")
_VARINT_BYTES_MAX: Final = 5  # A length has 32 bits.


def encode(metadata: LedgerMetadata) -> bytes:
    """Encodes in the metadata's own version. Fields for which an old version has no room are left out, as Apache
    does."""
    version = metadata.format_version
    return b"BookieMetadataFormatVersion\t%d\n" % version + _ENCODERS[version](metadata)


def decode(ledger_id: LedgerId, value: bytes, *, node_created_ms: int) -> LedgerMetadata:
    """Decodes a value. `node_created_ms` replaces a creation time that is not part of it."""
    try:
        version, body = split_header(value)
        return _DECODERS[version](ledger_id, body, node_created_ms)
    except (MalformedMetadataError, ValueError) as error:
        raise MalformedMetadataError(f"metadata of ledger {ledger_id}: {error}") from error


def split_header(value: bytes) -> tuple[FormatVersion, bytes]:
    if len(value) > VALUE_BYTES_MAX:
        raise MalformedMetadataError(
            f"{len(value)} bytes, more than the {VALUE_BYTES_MAX} that ledger metadata may have"
        )
    header = _HEADER.match(value)
    if header is None:
        raise MalformedMetadataError(f"no line 'BookieMetadataFormatVersion' at the beginning, but {value[:40]!r}")
    number = int(header[1])
    if number not in list(FormatVersion):
        raise MalformedMetadataError(f"format version {number}; known are 1, 2 and 3")
    return FormatVersion(number), value[header.end() :]


def _encode_lines(metadata: LedgerMetadata) -> bytes:
    lines = [str(metadata.write_quorum), str(metadata.ensemble_size), str(metadata.length)]
    lines += ["\t".join((str(f.first_entry_id), *f.ensemble)) for f in metadata.fragments]
    match metadata.state:
        case LedgerState.CLOSED:
            lines.append(f"{metadata.last_entry_id}\t{_CLOSED}")
        case LedgerState.IN_RECOVERY:
            lines.append(f"{_IN_RECOVERY_ENTRY}\t{_CLOSED}")
        case LedgerState.OPEN:
            lines.append("")
    return "\n".join(lines).encode()


def _decode_lines(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
    del node_created_ms  # Apache knows no creation time for a ledger of this version, not even the node's.
    lines = _LINE_END.split(body.decode())  # A UnicodeDecodeError is a ValueError: the caller names the ledger.
    if lines[-1] == "":
        lines.pop()
    if len(lines) < 3:
        raise MalformedMetadataError(f"{len(lines)} lines; the quorum, the ensemble size and the length take three")
    write_quorum, ensemble_size, length = map(_number, lines[:3])
    fragments: list[Fragment] = []
    state, last_entry_id = LedgerState.OPEN, NO_ENTRY
    for line in lines[3:]:
        first, *rest = line.rstrip("\t").split("\t")
        if rest[:1] == [_CLOSED]:
            state, last_entry_id = _end(_number(first))
            break  # Apache does not read what follows either.
        if not rest:
            raise MalformedMetadataError(f"a line is neither a fragment nor the end of the ledger: {line[:80]!r}")
        fragments.append(Fragment(EntryId(_number(first)), tuple(map(stored_bookie_id, rest))))
    return LedgerMetadata(
        ledger_id=ledger_id,
        ensemble_size=ensemble_size,
        write_quorum=write_quorum,
        ack_quorum=write_quorum,
        fragments=tuple(fragments),
        state=state,
        last_entry_id=last_entry_id,
        length=length if state is LedgerState.CLOSED else 0,
        format_version=FormatVersion.TEXT,
    )


def _end(last_entry: int) -> tuple[LedgerState, EntryId]:
    if last_entry == _IN_RECOVERY_ENTRY:
        return LedgerState.IN_RECOVERY, NO_ENTRY
    return LedgerState.CLOSED, EntryId(last_entry)


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text):
        raise MalformedMetadataError(f"{text[:40]!r} is not a number")
    return int(text)


def _encode_binary(metadata: LedgerMetadata) -> bytes:
    message = _to_message(metadata)
    message.cToken = metadata.c_token
    body = message.SerializeToString(deterministic=True) + metadata.unknown_fields
    return _varint(len(body)) + body


def _encode_text(metadata: LedgerMetadata) -> bytes:
    return text_format.MessageToString(_to_message(metadata)).encode()


def _decode_binary(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
    message = LedgerMetadataFormat()
    try:
        message.ParseFromString(_undelimited(body))
    except DecodeError as error:
        raise MalformedMetadataError(f"not a message of ledger metadata: {error}") from error
    return _from_message(ledger_id, message, FormatVersion.BINARY_PROTOBUF, node_created_ms)


def _decode_text(ledger_id: LedgerId, body: bytes, node_created_ms: int) -> LedgerMetadata:
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


_ENCODERS: dict[FormatVersion, Callable[[LedgerMetadata], bytes]] = {
    FormatVersion.TEXT: _encode_lines,
    FormatVersion.TEXT_PROTOBUF: _encode_text,
    FormatVersion.BINARY_PROTOBUF: _encode_binary,
}
_DECODERS: dict[FormatVersion, Callable[[LedgerId, bytes, int], LedgerMetadata]] = {
    FormatVersion.TEXT: _decode_lines,
    FormatVersion.TEXT_PROTOBUF: _decode_text,
    FormatVersion.BINARY_PROTOBUF: _decode_binary,
}
