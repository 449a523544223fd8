"""A bookie's end of one connection: received bytes to requests, responses to bytes.

Invariant: a connection speaks v3 until the first frame that is not a v3 request, and v2 from then on, as in Apache's
           server. No v2 frame parses as protobuf: its first byte, the version, would be a field number of 0.
Failure:   a request that can be answered is a `Refusal`, and the connection continues. Any other (an unknown operation
           in v2, a frame that is cut short or too long) raises RemoteProtocolError: close the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.wire.bookkeeper import requests_v2, requests_v3, responses_v2, responses_v3
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, PREFIX_BYTES, Buffer, frame_end
from magnetar.wire.bookkeeper.hot_path import ENTRY_OFFSET, AddRun, ReadRun, scan_adds, scan_reads
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse, Refusal

_PROTOBUF_FIRST_BYTE_MIN = 8  # Below it, the field number is 0.
_ADD_FRAME_BYTES_MAX = ENTRY_OFFSET + ENTRY_BYTES_MAX  # A larger one is for `decode`, which refuses it.


class Decoded(NamedTuple):
    request: AnyRequest | Refusal
    end: int
    """The beginning of the next frame."""


class RequestDecoder:
    """One per connection. Regions are as in frames.py; nothing of a buffer is kept."""

    __slots__ = ("_add_limit", "_limit", "_may_be_v3")

    def __init__(self, limit: int = FRAME_BYTES_MAX) -> None:
        self._limit = limit
        self._add_limit = min(limit, _ADD_FRAME_BYTES_MAX)
        self._may_be_v3 = True

    def scan_adds(self, buffer: Buffer, start: int, end: int) -> AddRun:
        """Scans v2 adds, which is fast; after an empty run, use `decode`."""
        run = scan_adds(buffer, start, end, self._add_limit)
        if run.entry_ids:
            self._may_be_v3 = False
        return run

    def scan_reads(self, buffer: Buffer, start: int, end: int) -> ReadRun:
        """Scans plain v2 reads, which is fast; after an empty run, use `decode`."""
        run = scan_reads(buffer, start, end)
        if run.entry_ids:
            self._may_be_v3 = False
        return run

    def decode(self, buffer: Buffer, start: int, end: int) -> Decoded | None:
        """Decodes the frame at `start`, of any kind; None if it is incomplete."""
        following = frame_end(buffer, start, end, self._limit)
        if following is None or following > end:
            return None
        body = memoryview(buffer)[start + PREFIX_BYTES : following]
        return Decoded(self._decode_body(body), following)

    def _decode_body(self, body: memoryview) -> AnyRequest | Refusal:
        if self._may_be_v3 and body[0] >= _PROTOBUF_FIRST_BYTE_MIN:
            request = requests_v3.decode_request(body)
            if request is not None:
                return request
        self._may_be_v3 = False
        return requests_v2.decode_request(body)


def encode_response(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes one frame. Raises LocalProtocolError if it is too long, or its version lacks this response."""
    return b"".join(response_parts(response, limit))


def response_parts(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> list[Buffer]:
    """Returns it as buffers to be written one after the other; in v2, entries are not copied."""
    if response.version == V3:
        return [responses_v3.encode_response(response, limit)]
    return responses_v2.response_parts(response, limit)
