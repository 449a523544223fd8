"""Ledger metadata as bytes: a header line that names the version, and a body in that version's form.

Format:    "BookieMetadataFormatVersion" TAB version LF body
           1: lines of text (ledger_codec_text.py)
           2: protobuf as text, 3: varint length and binary protobuf (ledger_codec_protobuf.py)
Invariant: for any bytes, `decode` returns metadata whose invariants hold, or raises MalformedMetadataError with the
           reason, in time and memory bounded by `VALUE_BYTES_MAX`.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Final

from magnetar.errors import MalformedMetadataError
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper import ledger_codec_protobuf as protobuf
from magnetar.metadata.bookkeeper import ledger_codec_text as text
from magnetar.metadata.bookkeeper.ledger_metadata import FormatVersion, LedgerMetadata

VALUE_BYTES_MAX: Final = 2**20
"""ZooKeeper's own limit for a value, by default; a longer one is not ledger metadata."""

_HEADER = re.compile(rb"BookieMetadataFormatVersion\t([0-9]{1,9})\n")

_ENCODERS: dict[FormatVersion, Callable[[LedgerMetadata], bytes]] = {
    FormatVersion.TEXT: text.encode,
    FormatVersion.TEXT_PROTOBUF: protobuf.encode_text,
    FormatVersion.BINARY_PROTOBUF: protobuf.encode_binary,
}
_DECODERS: dict[FormatVersion, Callable[[LedgerId, bytes, int], LedgerMetadata]] = {
    FormatVersion.TEXT: text.decode,
    FormatVersion.TEXT_PROTOBUF: protobuf.decode_text,
    FormatVersion.BINARY_PROTOBUF: protobuf.decode_binary,
}


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
