"""The frames of Kafka's protocol: a size, a header, and the body of a request or an answer.

Format:    size i32 | key i16 | version i16 | correlation_id i32 | client_id nullable string i16 [| tags] | body
           size i32 | correlation_id i32 [| tags] | body
           The header of a request has tags in flexible versions; its client id is never compact. So has the header of
           an answer, except that of ApiVersions: a client reads it before it knows which version the server speaks.
Order:     Functions take a buffer and the region `start` to `end` of it that holds received bytes.
Limits:    A size above the limit is refused as soon as it is read.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from magnetar.errors import RemoteProtocolError
from magnetar.wire.kafka.codec import Api, Buffer, Reader, skip_tags

SIZE_BYTES: Final = 4
API_VERSIONS_KEY: Final = 18
_HEAD = struct.Struct(">hhi")
_ANSWER = struct.Struct(">ii")
_NO_TAGS: Final = b"\x00"


class RequestHead(NamedTuple):
    key: int
    version: int
    correlation_id: int
    client_id: str | None


def frame_end(buffer: Buffer, start: int, end: int, bytes_max: int) -> int | None:
    """Returns the end of the frame at `start`, which may be beyond `end`; None if its size is not known yet."""
    if end - start < SIZE_BYTES:
        return None
    size = int.from_bytes(buffer[start : start + SIZE_BYTES], "big", signed=True)
    if not _HEAD.size <= size <= bytes_max:
        raise RemoteProtocolError(
            f"a frame of {size} bytes, where {_HEAD.size} to {bytes_max} are accepted: the client may speak another "
            "protocol, or send more at once than kafka.request_bytes_max"
        )
    return start + SIZE_BYTES + size


def read_request_head(reader: Reader) -> RequestHead:
    """Reads the header up to the client id, which is all that every version has."""
    key, version, correlation_id = _HEAD.unpack_from(reader.take(_HEAD.size))
    length = int.from_bytes(reader.take(2), "big", signed=True)
    client_id = None if length < 0 else str(reader.take(length), "utf-8", "replace")
    return RequestHead(key, version, correlation_id, client_id)


def finish_request_head(reader: Reader, api: Api, version: int) -> None:
    """Reads the rest of the header."""
    if api.is_flexible(version):
        skip_tags(reader)


def encode_request(api: Api, version: int, correlation_id: int, client_id: str, body: Sequence[Buffer]) -> list[Buffer]:
    name = client_id.encode()
    head = _HEAD.pack(api.key, version, correlation_id) + len(name).to_bytes(2, "big") + name
    if api.is_flexible(version):
        head += _NO_TAGS
    size = len(head) + sum(map(len, body))
    return [size.to_bytes(SIZE_BYTES, "big") + head, *body]


def encode_answer(api: Api, version: int, correlation_id: int, body: Sequence[Buffer]) -> list[Buffer]:
    tags = _NO_TAGS if api.is_flexible(version) and api.key != API_VERSIONS_KEY else b""
    size = _ANSWER.size - SIZE_BYTES + len(tags) + sum(map(len, body))
    return [_ANSWER.pack(size, correlation_id) + tags, *body]


def read_answer_head(reader: Reader, api: Api, version: int) -> int:
    """Returns the correlation id. The reader begins after the size."""
    correlation_id = int.from_bytes(reader.take(4), "big", signed=True)
    if api.is_flexible(version) and api.key != API_VERSIONS_KEY:
        skip_tags(reader)
    return correlation_id
