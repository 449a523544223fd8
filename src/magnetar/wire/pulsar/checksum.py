"""The checksum of headers and payload: made by the producer, verified by whoever receives, recomputed by nobody.

Format:    [0x0e01 u16 | crc32c u32] metadata_size u32 | MessageMetadata | payload
           It covers all that follows it. It is optional: very old clients send none.
"""

from __future__ import annotations

import struct
from typing import Final

from crc32c import crc32c

from magnetar.wire.pulsar.frames import Buffer

CHECKSUM_MAGIC: Final = 0x0E01
CHECKSUM = struct.Struct(">HI")
CHECKSUM_BYTES: Final = CHECKSUM.size


def has_checksum(headers_and_payload: Buffer) -> bool:
    return len(headers_and_payload) >= CHECKSUM_BYTES and CHECKSUM.unpack_from(headers_and_payload)[0] == CHECKSUM_MAGIC


def verify_checksum(headers_and_payload: Buffer) -> bool:
    """Whether it is right; where there is none, nothing can be wrong."""
    if not has_checksum(headers_and_payload):
        return True
    expected = CHECKSUM.unpack_from(headers_and_payload)[1]
    return crc32c(memoryview(headers_and_payload)[CHECKSUM_BYTES:]) == int(expected)


def with_checksum(metadata: bytes, payload: Buffer) -> bytes:
    """Headers and payload of a serialized MessageMetadata and what it describes."""
    covered = b"".join((len(metadata).to_bytes(4, "big"), metadata, payload))
    return CHECKSUM.pack(CHECKSUM_MAGIC, crc32c(covered)) + covered
