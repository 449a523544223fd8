"""Hostile and broken peers: an answer where Apache's server gives one, otherwise one kind of error, never another."""

from __future__ import annotations

import contextlib
import struct
from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest
from magnetar.wire.bookkeeper.ends import RequestDecoder, decode_response, encode_request
from magnetar.wire.bookkeeper.frames import ENTRY_BYTES_MAX, FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.messages import (
    LAC_BYTES_MAX,
    AddEntry,
    AddResponse,
    AnyRequest,
    Auth,
    BareResponse,
    BatchReadResponse,
    ReadEntry,
    ReadResponse,
    Refusal,
    WriteLac,
    WriteLacResponse,
)
from magnetar.wire.bookkeeper.proto import bookkeeper_protocol_pb2 as pb
from tests.rows import every_row
from tests.unit.wire.bookkeeper.samples import KEY, entry_body, golden

GOLDEN = golden()


def frame_of(body: bytes) -> bytes:
    return struct.pack(">I", len(body)) + body


def decoded(frame: bytes, decoder: RequestDecoder | None = None) -> AnyRequest | Refusal:
    result = (decoder or RequestDecoder()).decode(frame, 0, len(frame))
    assert result is not None
    return result.request


def answer_to(refusal: AnyRequest | Refusal, version: int) -> object:
    assert isinstance(refusal, Refusal), refusal
    response = decode_response(refusal.answer, 0, len(refusal.answer), version)
    assert response is not None
    assert response.response.code is refusal.code
    return response.response


# --- frames -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("size", [FRAME_BYTES_MAX - 3, 2**31 - 1, 2**31, 2**32 - 1])
def test_hostile_length_is_refused_as_soon_as_it_is_read(size: int) -> None:
    prefix = struct.pack(">I", size)
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        RequestDecoder().decode(prefix, 0, 4)
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        decode_response(prefix, 0, 4, 2)


def test_largest_length_is_waited_for() -> None:
    assert RequestDecoder().decode(struct.pack(">I", FRAME_BYTES_MAX - 4), 0, 4) is None


@pytest.mark.parametrize("size", [0, 1, 3])
def test_frame_too_short_for_any_message_is_refused(size: int) -> None:
    with pytest.raises(RemoteProtocolError, match="too short"):
        RequestDecoder().decode(frame_of(bytes(size)), 0, 4)


# --- which version ----------------------------------------------------------------------------------------------------


def test_connection_speaks_v2_for_good_after_its_first_frame_that_is_not_v3() -> None:
    decoder = RequestDecoder()
    v3 = encode_request(ReadEntry(1, 2, txn_id=3))
    assert decoded(v3, decoder) == ReadEntry(1, 2, txn_id=3)
    assert decoded(encode_request(ReadEntry(1, 2, version=2)), decoder) == ReadEntry(1, 2, version=2)
    with pytest.raises(RemoteProtocolError, match="operation"):
        decoded(v3, decoder)


def test_scan_that_found_something_pins_the_connection_too() -> None:
    decoder = RequestDecoder()
    v3 = encode_request(ReadEntry(1, 2))
    assert decoder.scan_adds(v3, 0, len(v3)).entry_ids == []
    assert decoder.scan_reads(v3, 0, len(v3)).entry_ids == []
    assert decoded(v3, decoder) == ReadEntry(1, 2)
    read = encode_request(ReadEntry(1, 2, version=2))
    decoder.scan_reads(read, 0, len(read))
    with pytest.raises(RemoteProtocolError, match="operation"):
        decoded(v3, decoder)


@pytest.mark.parametrize("version", [0, 1, 2])
def test_all_versions_of_the_compact_form_are_served_and_answered_in_their_own(version: int) -> None:
    add = AddEntry(1, 2, KEY, entry_body(1, 2), version=version)
    assert decoded(encode_request(add)) == add


# --- v2 ---------------------------------------------------------------------------------------------------------------


def v2(operation: int, rest: bytes, *, version: int = 2, flags: int = 0) -> bytes:
    return frame_of(struct.pack(">BBH", version, operation, flags) + rest)


@pytest.mark.parametrize("operation", [0, 4, 5, 6, 8, 255])
def test_operation_unknown_in_v2_ends_the_connection(operation: int) -> None:
    with pytest.raises(RemoteProtocolError, match=f"operation {operation} is unknown"):
        decoded(v2(operation, bytes(60)))


@pytest.mark.parametrize("version", [3, 127, 128, 255])
@pytest.mark.parametrize(("operation", "rest"), [(1, KEY + entry_body(5, 6)), (2, struct.pack(">qq", 5, 6))])
def test_version_above_2_in_the_compact_form_is_answered_as_such(version: int, operation: int, rest: bytes) -> None:
    refusal = decoded(v2(operation, rest, version=version))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.EBADVERSION
    assert refusal.answer == struct.pack(">IBBHiqq", 24, version, operation, 0, 103, 5, 6)


@pytest.mark.parametrize(
    "name", ["v2-add/DUMMY/empty", "v2-read", "v2-fence", "v2-batch-read", "v2-batch-read-fence", "v2-auth"]
)
def test_request_cut_short_inside_its_frame_is_refused_or_ends_the_connection(name: str) -> None:
    body = GOLDEN[name][4:]
    fixed = min(len(body), 4 + 20 + 24) if "add" in name else len(body)
    for length in range(4, fixed):
        try:
            result = decoded(frame_of(body[:length]))
        except RemoteProtocolError:
            continue
        assert isinstance(result, Refusal)
        assert result.code is Code.EBADREQ


BAD_V2 = {
    "add to a negative ledger": (v2(1, KEY + entry_body(-1, 6)), Code.EBADREQ),
    "add of a negative entry": (v2(1, KEY + entry_body(5, -0x2000)), Code.EBADREQ),
    "add of an entry without a LAC": (v2(1, KEY + entry_body(5, 6)[:16]), Code.EBADREQ),
    "read of a negative ledger": (v2(2, struct.pack(">qq", -5, 6)), Code.EBADREQ),
    "read before the last entry's id": (v2(2, struct.pack(">qq", 5, -2)), Code.EBADREQ),
    "batch read from a negative entry": (v2(7, struct.pack(">qqqiq", 5, -1, 9, 1, 1)), Code.EBADREQ),
    "fence without a place for a key": (v2(2, struct.pack(">qq", 5, -1), version=1, flags=1), Code.EUA),
    "batch fence without a place for a key": (
        v2(7, struct.pack(">qqqiq", 5, 0, 9, 1, 1), version=1, flags=1),
        Code.EUA,
    ),
}


@pytest.mark.parametrize("what", BAD_V2)
def test_v2_request_that_cannot_be_served_is_answered(what: str) -> None:
    frame, code = BAD_V2[what]
    refusal = decoded(frame)
    assert isinstance(refusal, Refusal)
    assert refusal.code is code
    response = answer_to(refusal, 2)
    assert isinstance(response, AddResponse | ReadResponse | BatchReadResponse)


def test_bytes_behind_a_v2_read_are_ignored() -> None:
    assert decoded(v2(2, struct.pack(">qq", 5, 6) + KEY)) == ReadEntry(5, 6, version=2)


def test_auth_is_understood_whatever_version_it_claims() -> None:
    message = pb.AuthMessage(authPluginName="p", payload=b"x").SerializeToString()
    assert decoded(v2(3, message, version=9)) == Auth("p", b"x", version=2)


@pytest.mark.parametrize("message", [b"", b"\xff\xff", b"\x0a\x02\xff\xfe\x12\x00"])
def test_auth_message_that_is_none_ends_the_connection(message: bytes) -> None:
    with pytest.raises(RemoteProtocolError, match="auth message"):
        decoded(v2(3, message))


# --- v3 ---------------------------------------------------------------------------------------------------------------


def v3(operation: int, *, version: int = 3, **content: object) -> bytes:
    request = pb.Request(**content)  # type: ignore[arg-type]
    request.header.version, request.header.operation, request.header.txnId = version, operation, 9
    return frame_of(request.SerializeToString())


BAD_V3 = {
    "range read": (v3(pb.RANGE_READ_ENTRY), Code.EBADREQ, BareResponse),
    "range add": (v3(pb.RANGE_ADD_ENTRY), Code.EBADREQ, BareResponse),
    "batch read": (v3(pb.BATCH_READ_ENTRY), Code.EBADREQ, BareResponse),
    "read without content": (v3(pb.READ_ENTRY), Code.EBADREQ, BareResponse),
    "add with the content of a read": (
        v3(pb.ADD_ENTRY, readRequest=pb.ReadRequest(ledgerId=1, entryId=2)),
        Code.EBADREQ,
        BareResponse,
    ),
    "read in version 2": (
        v3(pb.READ_ENTRY, version=2, readRequest=pb.ReadRequest(ledgerId=1, entryId=2)),
        Code.EBADVERSION,
        ReadResponse,
    ),
    "add in version 1": (
        v3(
            pb.ADD_ENTRY,
            version=1,
            addRequest=pb.AddRequest(ledgerId=1, entryId=2, masterKey=KEY, body=entry_body(1, 2)),
        ),
        Code.EBADVERSION,
        AddResponse,
    ),
    "fence without a key": (
        v3(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=1, entryId=-1, flag=pb.ReadRequest.FENCE_LEDGER)),
        Code.EUA,
        ReadResponse,
    ),
    "poll that wants another entry along": (
        v3(
            pb.READ_ENTRY,
            readRequest=pb.ReadRequest(
                ledgerId=1, entryId=5, previousLAC=4, timeOut=1, flag=pb.ReadRequest.ENTRY_PIGGYBACK
            ),
        ),
        Code.EBADREQ,
        ReadResponse,
    ),
    "add whose entry is of another ledger": (
        v3(pb.ADD_ENTRY, addRequest=pb.AddRequest(ledgerId=1, entryId=2, masterKey=KEY, body=entry_body(9, 2))),
        Code.EBADREQ,
        AddResponse,
    ),
    "add whose entry has another id": (
        v3(pb.ADD_ENTRY, addRequest=pb.AddRequest(ledgerId=1, entryId=2, masterKey=KEY, body=entry_body(1, 3))),
        Code.EBADREQ,
        AddResponse,
    ),
    "add of nothing": (
        v3(pb.ADD_ENTRY, addRequest=pb.AddRequest(ledgerId=1, entryId=2, masterKey=KEY, body=b"")),
        Code.EBADREQ,
        AddResponse,
    ),
    "LAC of another ledger": (
        encode_request(WriteLac(1, 2, KEY, struct.pack(">qq", 3, 2))),
        Code.EBADREQ,
        WriteLacResponse,
    ),
    "LAC cut short": (encode_request(WriteLac(1, 2, KEY, b"short")), Code.EBADREQ, WriteLacResponse),
    "auth plugin that is not text": (
        frame_of(b"\x0a\x06\x08\x03\x10\x05\x18\x09\xb2\x06\x05\x0a\x01\xff\x12\x00"),
        Code.EBADREQ,
        BareResponse,
    ),
}


BAD_KEYS = [b"", KEY[:19], KEY + b"!", b"k" * 300]


@pytest.mark.parametrize("key", BAD_KEYS, ids=len)
@pytest.mark.parametrize(
    "request_with",
    [
        lambda key: AddEntry(1, 2, key, entry_body(1, 2)),
        lambda key: AddEntry(1, 2, key, entry_body(1, 2), recovery=True),
        lambda key: ReadEntry(1, -1, fence=True, master_key=key),
        lambda key: WriteLac(1, 2, key, struct.pack(">qq", 1, 2)),
    ],
    ids=["add", "recovery add", "fence", "LAC"],
)
def test_v3_master_key_of_another_length_than_20_bytes_is_refused(
    request_with: Callable[[bytes], AnyRequest], key: bytes
) -> None:
    refusal = decoded(encode_request(request_with(key)))
    assert isinstance(refusal, Refusal)
    assert refusal.code is Code.EBADREQ
    assert f"not {len(key)}" in refusal.reason


@pytest.mark.parametrize("key", BAD_KEYS, ids=len)
def test_key_of_a_read_that_does_not_fence_may_be_anything(key: bytes) -> None:
    assert decoded(encode_request(ReadEntry(1, 2, master_key=key))) == ReadEntry(1, 2, master_key=key)


def test_explicit_lac_is_taken_up_to_a_limit_far_above_what_clients_send() -> None:
    ids = struct.pack(">qq", 1, 2)
    longest = WriteLac(1, 2, KEY, ids.ljust(LAC_BYTES_MAX, b"d"))
    assert decoded(encode_request(longest)) == longest
    for size in (LAC_BYTES_MAX + 1, 2**16, 5 * 2**20):
        refusal = decoded(encode_request(WriteLac(1, 2, KEY, ids.ljust(size, b"d"))))
        assert isinstance(refusal, Refusal)
        assert refusal.code is Code.EBADREQ
    assert 10 * max(len(entry_digest(kind, b"p").seal_lac(1, 2)) for kind in DigestType) <= LAC_BYTES_MAX


def test_compact_add_of_an_entry_that_no_answer_could_carry_is_refused() -> None:
    rest = bytes(ENTRY_BYTES_MAX - len(entry_body(1, 2)))
    largest = v2(1, KEY + entry_body(1, 2, rest=rest))
    assert RequestDecoder().scan_adds(largest, 0, len(largest)).entry_ids == [2]
    larger = v2(1, KEY + entry_body(1, 2, rest=rest + b"!"))
    assert len(larger) < FRAME_BYTES_MAX
    assert RequestDecoder().scan_adds(larger, 0, len(larger)).entry_ids == []
    assert answer_to(decoded(larger), 2) == AddResponse(Code.EBADREQ, 1, 2, version=2)


@every_row("what", BAD_V3)
def test_v3_request_that_cannot_be_served_is_answered_and_the_connection_goes_on(what: str) -> None:
    frame, code, kind = BAD_V3[what]
    decoder = RequestDecoder()
    refusal = decoded(frame, decoder)
    assert isinstance(refusal, Refusal)
    assert refusal.code is code
    assert type(answer_to(refusal, 3)) is kind
    assert decoded(encode_request(ReadEntry(1, 2, txn_id=3)), decoder) == ReadEntry(1, 2, txn_id=3)


def test_negative_timeout_of_a_poll_means_no_waiting() -> None:
    request = decoded(
        v3(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=1, entryId=-1, previousLAC=4, timeOut=-(2**60)))
    )
    assert request == ReadEntry(1, -1, previous_lac=4, timeout_ms=0, txn_id=9)


def test_piggyback_without_a_known_lac_is_a_plain_read() -> None:
    flag = pb.ReadRequest.ENTRY_PIGGYBACK
    request = decoded(v3(pb.READ_ENTRY, readRequest=pb.ReadRequest(ledgerId=1, entryId=7, flag=flag)))
    assert request == ReadEntry(1, 7, txn_id=9)


@pytest.mark.parametrize(
    "body",
    [
        b"\x0a\xff\xff\xff\xff\x0f",  # A header longer than the frame.
        b"\x0a\x06\x08\x03\x10\x63\x18\x09",  # An operation that has no number.
        b"\x0a\x04\x08\x03\x10\x01",  # No transaction id.
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",  # The begin of TLS.
    ],
)
def test_what_is_no_request_of_either_version_ends_the_connection(body: bytes) -> None:
    with pytest.raises(RemoteProtocolError):
        decoded(frame_of(body))


# --- the client's side ------------------------------------------------------------------------------------------------

BAD_RESPONSES = {
    "unknown code in v2": (2, struct.pack(">Iiqq", 0x02010000, 55, 1, 2)),
    "unknown code in v3": (3, b"\x0a\x06\x08\x03\x10\x02\x18\x09\x10\x63"),
    "unknown operation": (2, struct.pack(">Iiqq", 0x02040000, 0, 1, 2)),
    "unknown version": (2, struct.pack(">Iiqq", 0x03010000, 0, 1, 2)),
    "cut short": (2, struct.pack(">Iiq", 0x02010000, 0, 1)),
    "batch without a request id": (2, struct.pack(">Iiqq", 0x02070000, 0, 1, 2)),
    "batch with an entry beyond its end": (2, struct.pack(">IiqqqI", 0x02070000, 0, 1, 2, 3, 5) + b"four"),
    "batch with half a length": (2, struct.pack(">Iiqqq", 0x02070000, 0, 1, 2, 3) + b"\0\0"),
    "garbage": (3, b"\xff" * 20),
    "success without content": (3, b"\x0a\x06\x08\x03\x10\x02\x18\x09\x10\x00"),
    "no status": (3, b"\x0a\x06\x08\x03\x10\x02\x18\x09"),
}


@every_row("what", BAD_RESPONSES)
def test_response_that_makes_no_sense_is_an_error_of_the_peer(what: str) -> None:
    version, body = BAD_RESPONSES[what]
    frame = frame_of(body)
    with pytest.raises(RemoteProtocolError):
        decode_response(frame, 0, len(frame), version)


def test_failure_inside_a_v3_response_that_is_fine_outside_counts() -> None:
    message = pb.Response(
        header=pb.BKPacketHeader(version=3, operation=pb.ADD_ENTRY, txnId=9),
        status=pb.EOK,
        addResponse=pb.AddResponse(status=pb.EFENCED, ledgerId=1, entryId=2),
    )
    frame = frame_of(message.SerializeToString())
    result = decode_response(frame, 0, len(frame), 3)
    assert result is not None
    assert result.response == AddResponse(Code.EFENCED, 1, 2, txn_id=9)


# --- anything ---------------------------------------------------------------------------------------------------------


@given(st.binary(min_size=4, max_size=80), st.booleans())
def test_no_bytes_raise_anything_else_on_either_side(body: bytes, pinned: bool) -> None:
    frame, decoder = frame_of(body), RequestDecoder()
    if pinned:
        decoded(encode_request(ReadEntry(1, 2, version=2)), decoder)
    for decode in (
        lambda: decoder.decode(frame, 0, len(frame)),
        lambda: decode_response(frame, 0, len(frame), 2),
        lambda: decode_response(frame, 0, len(frame), 3),
    ):
        with contextlib.suppress(RemoteProtocolError):
            decode()
    decoder.scan_adds(frame, 0, len(frame))
    decoder.scan_reads(frame, 0, len(frame))
