"""A client's end of one connection: requests to bytes, received bytes to responses.

Invariant: the client chose the version, and all responses have it. The exception is START_TLS, which is asked and
           answered in v3 also on a connection that speaks v2 afterwards, so its response is decoded with version 3.
"""

from __future__ import annotations

from typing import NamedTuple

from magnetar.wire.bookkeeper import requests_v2, requests_v3, responses_v2, responses_v3
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, PREFIX_BYTES, Buffer, frame_end
from magnetar.wire.bookkeeper.messages import V3, AnyRequest, AnyResponse


class Decoded(NamedTuple):
    response: AnyResponse
    end: int
    """The beginning of the next frame."""


def encode_request(request: AnyRequest, limit: int = FRAME_BYTES_MAX) -> bytes:
    """Encodes one frame. Raises LocalProtocolError if it is too long, or its version lacks this request."""
    if request.version == V3:
        return requests_v3.encode_request(request, limit)
    return requests_v2.encode_request(request, limit)


def decode_response(buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX) -> Decoded | None:
    """Decodes the frame at `start`; None if it is incomplete. Runs of adds: `hot_path.scan_add_responses`."""
    following = frame_end(buffer, start, end, limit)
    if following is None or following > end:
        return None
    decode = responses_v3.decode_response if version == V3 else responses_v2.decode_response
    return Decoded(decode(memoryview(buffer)[start + PREFIX_BYTES : following]), following)


def decode_responses(
    buffer: Buffer, start: int, end: int, version: int, limit: int = FRAME_BYTES_MAX
) -> tuple[list[AnyResponse], int]:
    """Returns every whole frame of the region, and the beginning of the rest."""
    responses: list[AnyResponse] = []
    while (decoded := decode_response(buffer, start, end, version, limit)) is not None:
        responses.append(decoded.response)
        start = decoded.end
    return responses, start
