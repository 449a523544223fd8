"""Hashes of message keys, as Pulsar computes them: a key must go to the same place whoever owns the topic."""

from __future__ import annotations

import base64
import struct
from functools import lru_cache
from typing import Final

from google.protobuf.message import DecodeError

from magnetar.broker.dispatch.scan import metadata_bounds
from magnetar.topic.log_entry import LogEntry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata
from magnetar.wire.pulsar.text import text_of

RANGE_SIZE: Final = 2**16
"""Key hashes are within 0 to 65,535."""
UNKNOWN_HASH: Final = 0
"""No key has this hash: one that would gets 1."""
_MASK: Final = 0xFFFFFFFF
_NO_KEY: Final = b"NONE_KEY"


def murmur3_32(data: bytes) -> int:
    """MurmurHash3 of 32 bits with seed 0, without its sign bit."""
    length = len(data)
    whole = length - length % 4
    h = 0
    for (k,) in struct.iter_unpack("<I", data[:whole]):
        k = k * 0xCC9E2D51 & _MASK
        k = ((k << 15) | (k >> 17)) * 0x1B873593 & _MASK
        h ^= k
        h = ((h << 13) | (h >> 19)) & _MASK
        h = h * 5 + 0xE6546B64 & _MASK
    k = int.from_bytes(data[whole:], "little") * 0xCC9E2D51 & _MASK
    h ^= ((k << 15) | (k >> 17)) * 0x1B873593 & _MASK
    h ^= length
    h = (h ^ (h >> 16)) * 0x85EBCA6B & _MASK
    h = (h ^ (h >> 13)) * 0xC2B2AE35 & _MASK
    return (h ^ (h >> 16)) & 0x7FFFFFFF


@lru_cache(maxsize=16_384)  # Keys come back, and this is Python.
def key_hash(key: bytes, first: int = 0) -> int:
    """Within `first` to 65,535, and never 0. The ring of points begins at 1, ranges begin at 0, as in Pulsar."""
    return (murmur3_32(key) % (RANGE_SIZE - first) + first) or 1


def key_of(metadata: MessageMetadata) -> bytes:
    """What decides where a message goes: its ordering key, else its key, else something of its own."""
    if metadata.HasField("ordering_key"):
        return metadata.ordering_key
    if metadata.HasField("partition_key"):
        if not metadata.partition_key_b64_encoded:
            return text_of(metadata.partition_key).encode()
        try:
            return base64.b64decode(metadata.partition_key, validate=True)
        except ValueError:  # Not base64; or not even ASCII, which is an error of its own.
            return _NO_KEY
    return f"{text_of(metadata.producer_name)}-{metadata.sequence_id}".encode()


def hash_of_entry(entry: LogEntry, first: int = 0) -> int:
    data = entry.data
    try:
        start, end = metadata_bounds(data)
        return key_hash(key_of(MessageMetadata.FromString(bytes(data[start:end]))), first)
    except (DecodeError, struct.error, IndexError):
        return key_hash(_NO_KEY, first)
