"""Every message, in both roles: what one end encodes, the other decodes as the same, however TCP cuts it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import LocalProtocolError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.ends import (
    RequestDecoder,
    decode_response,
    decode_responses,
    encode_request,
    encode_response,
    response_parts,
)
from magnetar.wire.bookkeeper.messages import (
    AddEntry,
    AnyRequest,
    AnyResponse,
    Auth,
    AuthResponse,
    BatchRead,
    BatchReadResponse,
    ForceLedger,
    ForceLedgerResponse,
    ReadEntry,
    Refusal,
    StartTls,
    answer_to,
)
from tests.rows import every_row
from tests.unit.wire.bookkeeper import samples


def served(stream: bytes, cut: int) -> list[AnyRequest | Refusal]:
    """What a bookie gets that has received the stream up to the cut first, and the rest later."""
    decoder, requests, position = RequestDecoder(), [], 0
    for end in (cut, len(stream)):
        while (decoded := decoder.decode(stream, position, end)) is not None:
            requests.append(decoded.request)
            position = decoded.end
    assert position == len(stream)
    return requests


@given(st.one_of(st.lists(samples.requests_v2, max_size=4), st.lists(samples.requests_v3, max_size=4)), st.data())
def test_bookie_gets_the_requests_that_the_client_sent_wherever_the_stream_is_cut(
    requests: list[AnyRequest], data: st.DataObject
) -> None:
    stream = b"".join(encode_request(request) for request in requests)
    cut = data.draw(st.integers(0, len(stream)))
    assert served(stream, cut) == requests


@pytest.mark.parametrize("version", [2, 3])
def test_request_cut_at_any_byte_is_not_decoded_before_it_is_whole(version: int) -> None:
    request = ReadEntry(5, -1, fence=True, master_key=samples.KEY, version=version)
    frame = encode_request(request)
    for cut in range(len(frame)):
        assert RequestDecoder().decode(frame, 0, cut) is None
        assert served(frame, cut) == [request]


@pytest.mark.parametrize("version", [2, 3])
def test_responses_cut_at_any_byte_are_decoded_once_they_are_whole(version: int) -> None:
    name = "v2-batch-read-response" if version == 2 else "v3-read-response"
    frame = samples.golden()[name]
    stream = b"-" + frame * 2  # A region may begin anywhere in its buffer.
    (one,), _ = decode_responses(frame, 0, len(frame), version)
    for cut in range(1, len(stream) + 1):
        first, position = decode_responses(stream, 1, cut, version)
        second, end = decode_responses(stream, position, len(stream), version)
        assert len(first) == (cut - 1) // len(frame)
        assert (first + second, end) == ([one, one], len(stream))


def _round(response: AnyResponse) -> AnyResponse:
    frame = encode_response(response)
    decoded = decode_response(frame, 0, len(frame), response.version)
    assert decoded is not None
    assert decoded.end == len(frame)
    return decoded.response


@given(samples.responses_v2)
def test_client_gets_the_v2_response_that_the_bookie_sent(response: AnyResponse) -> None:
    assert _round(response) == response


@given(samples.responses_v3)
def test_client_gets_the_v3_response_that_the_bookie_sent(response: AnyResponse) -> None:
    assert _round(response) == response


@given(st.one_of(samples.requests_v2, samples.requests_v3), st.sampled_from([c for c in Code if c is not Code.EOK]))
def test_every_request_has_a_failure_that_its_client_understands(request: AnyRequest, code: Code) -> None:
    if isinstance(request, Auth) and request.version == 2:
        with pytest.raises(LocalProtocolError, match="close the connection"):
            encode_response(answer_to(request, code))
        return
    response = _round(answer_to(request, code))
    assert response.code is code
    assert response.txn_id == request.txn_id


def test_entries_of_a_v2_response_are_not_copied() -> None:
    first, second = bytearray(b"first"), memoryview(b"second")
    parts = response_parts(BatchReadResponse(Code.EOK, 1, 2, 3, [first, second], version=2))
    assert parts[2] is first
    assert parts[4] is second


@every_row(
    "encode",
    [
        lambda: encode_request(ForceLedger(1, version=2)),
        lambda: encode_request(StartTls(version=2)),
        lambda: encode_request(AddEntry(1, 2, samples.KEY, samples.entry_body(1, 2), deferred_sync=True, version=2)),
        lambda: encode_request(AddEntry(1, 2, b"short", samples.entry_body(1, 2), version=2)),
        lambda: encode_request(ReadEntry(1, -1, previous_lac=3, version=2)),
        lambda: encode_request(ReadEntry(1, -1, fence=True, version=2)),
        lambda: encode_request(ReadEntry(1, -1, fence=True, master_key=samples.KEY, version=1)),
        lambda: encode_request(AddEntry(1, 2, samples.KEY, samples.entry_body(1, 2), recovery=True, version=0)),
        lambda: encode_request(BatchRead(1, 2, 3, 4, 5, version=3)),
        lambda: encode_request(ReadEntry(1, -1, fence=True, version=3)),
        lambda: encode_request(ReadEntry(1, -1, timeout_ms=5, version=3)),
        lambda: encode_request(Auth("p", bytes(100)), limit=100),
        lambda: encode_request(Auth("p", bytes(100), version=2), limit=100),
        lambda: encode_response(BatchReadResponse(Code.EOK, 1, 2, 3, version=3)),
        lambda: encode_response(ForceLedgerResponse(Code.EOK, 1, version=2)),
        lambda: encode_response(BatchReadResponse(Code.EOK, 1, 2, 3, [bytes(50)] * 2, version=2), limit=100),
        lambda: encode_response(AuthResponse(Code.EOK, "p", bytes(100), version=2), limit=100),
    ],
)
def test_what_a_version_has_no_form_for_is_an_error_before_anything_is_sent(encode: Callable[[], bytes]) -> None:
    with pytest.raises(LocalProtocolError):
        encode()
