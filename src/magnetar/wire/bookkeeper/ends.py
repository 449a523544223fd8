"""The two ends of one connection: a bookie's, from received bytes to requests, and a client's, to responses.

Invariant: a connection speaks v3 until the first frame that is not a v3 request, and v2 from then on, as in Apache's
           server. No v2 frame parses as protobuf: its first byte, the version, would be a field number of 0.
           The client chose the version, and all responses have it. The exception is START_TLS, which is asked and
           answered in v3 also on a connection that speaks v2 afterwards, so its response is decoded with version 3.
Failure:   a request that can be answered is a `Refusal`, and the connection continues. Any other (an unknown operation
           in v2, a frame that is cut short or too long) raises RemoteProtocolError: close the connection.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.wire.bookkeeper import v2, v3
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, FRAME_BYTES_MAX, PREFIX_BYTES, Buffer, frame_end
from magnetar.wire.bookkeeper.hot_path import ENTRY_OFFSET, AddRun, ReadRun, scan_adds, scan_reads
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse, Refusal

_PROTOBUF_FIRST_BYTE_MIN = 8  # Below it, the field number is 0.
_ADD_FRAME_BYTES_MAX = ENTRY_OFFSET + ENTRY_BYTES_MAX  # A larger one is for `decode`, which refuses it.


class DecodedRequest(NamedTuple):
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

    def decode(self, buffer: Buffer, start: int, end: int) -> DecodedRequest | None:
        """Decodes the frame at `start`, of any kind; None if it is incomplete."""
        following = frame_end(buffer, start, end, self._limit)
        if following is None or following > end:
            return None
        body = memoryview(buffer)[start + PREFIX_BYTES : following]
        return DecodedRequest(self._decode_body(body), following)

    def _decode_body(self, body: memoryview) -> AnyRequest | Refusal:
        if self._may_be_v3 and body[0] >= _PROTOBUF_FIRST_BYTE_MIN:
            request = v3.decode_request(body)
            if request is not None:
                return request
        self._may_be_v3 = False
        return v2.decode_request(body)


def encode_response(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes one frame. Raises LocalProtocolError if it is too long, or its version lacks this response."""
    return b"".join(response_parts(response, limit))


def response_parts(response: AnyResponse, limit: int = FRAME_BYTES_MAX) -> list[Buffer]:
    """Returns it as buffers to be written one after the other; in v2, entries are not copied."""
    if response.version == V3:
        return [v3.encode_response(response, limit)]
    return v2.response_parts(response, limit)


class DecodedResponse(NamedTuple):
    response: AnyResponse
    end: int
    """The beginning of the next frame."""


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes one frame. Raises LocalProtocolError if it is too long, or its version lacks this request."""
    if request.version == V3:
        return v3.encode_request(request, limit)
    return v2.encode_request(request, limit)


def decode_response(
    buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX
) -> DecodedResponse | None:
    """Decodes the frame at `start`; None if it is incomplete. Runs of adds: `hot_path.scan_add_responses`."""
    following = frame_end(buffer, start, end, limit)
    if following is None or following > end:
        return None
    decode = v3.decode_response if version == V3 else v2.decode_response
    return DecodedResponse(decode(memoryview(buffer)[start + PREFIX_BYTES : following]), following)


def decode_responses(
    buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX
) -> tuple[list[AnyResponse], int]:
    """Returns every whole frame of the region, and the beginning of the rest."""
    responses: list[AnyResponse] = []
    while (decoded := decode_response(buffer, start, end, version, limit)) is not None:
        responses.append(decoded.response)
        start = decoded.end
    return responses, start
