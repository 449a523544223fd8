"""A client's end of one connection: requests to bytes, received bytes to responses.

Version:   the client chose it, so it knows: all responses have it. Except one: START_TLS is asked and answered in v3
           also on a connection that speaks v2 afterwards, so its response is decoded with version 3.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.wire.bookkeeper import requests_v2, requests_v3, responses_v2, responses_v3
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, PREFIX_BYTES, Buffer, frame_end
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse


class Decoded(NamedTuple):
    response: AnyResponse
    end: int
    """Where the next frame begins."""


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """One frame. LocalProtocolError if it is too long, or there is no such request in its version."""
    if request.version == V3:
        return requests_v3.encode_request(request, limit)
    return requests_v2.encode_request(request, limit)


def decode_response(buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX) -> Decoded | None:
    """The frame at `start`; None if it is not there as a whole yet. Runs of adds: `hot_path.scan_add_responses`."""
    following = frame_end(buffer, start, end, limit)
    if following is None or following > end:
        return None
    decode = responses_v3.decode_response if version == V3 else responses_v2.decode_response
    return Decoded(decode(memoryview(buffer)[start + PREFIX_BYTES : following]), following)


def decode_responses(
    buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX
) -> tuple[list[AnyResponse], int]:
    """Every whole frame of the region, and where the rest begins."""
    responses: list[AnyResponse] = []
    while (decoded := decode_response(buffer, start, end, version, limit)) is not None:
        responses.append(decoded.response)
        start = decoded.end
    return responses, start
