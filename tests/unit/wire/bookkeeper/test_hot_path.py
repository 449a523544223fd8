"""Runs of v2 frames: a scan takes what it is made for, and leaves everything else for the decoder that knows it all."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import LocalProtocolError, RemoteProtocolError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest
from magnetar.wire.bookkeeper.ends import RequestDecoder, decode_responses, encode_request, encode_response
from magnetar.wire.bookkeeper.frames import Flag
from magnetar.wire.bookkeeper.hot_path import (
    AddEncoder,
    AddRun,
    encode_add_responses,
    encode_adds_done,
    encode_reads,
    parse_context,
    read_response_header,
    scan_add_responses,
    scan_adds,
    scan_read_responses,
    scan_reads,
)
from magnetar.wire.bookkeeper.messages import AddEntry, AddResponse, AnyRequest, ReadEntry, ReadResponse, Refusal
from tests.rows import every_row
from tests.unit.wire.bookkeeper import samples
from tests.unit.wire.bookkeeper.samples import KEY, add_frame, entry_body

OTHER_KEY = b"another key of twenty"[:20]


def adds_of(run: AddRun, buffer: bytes) -> list[AddEntry]:
    """The run as the slow decoder would have it."""
    found = []
    for first, context, last in zip(run.firsts, run.contexts, [*run.firsts, len(run.entry_ids)][1:], strict=True):
        ledger_id, key, flags = parse_context(context)
        for index in range(first, last):
            body = buffer[run.offsets[index] : run.offsets[index] + run.lengths[index]]
            found.append(
                AddEntry(
                    ledger_id,
                    run.entry_ids[index],
                    key,
                    body,
                    recovery=bool(flags & Flag.RECOVERY_ADD),
                    version=2,
                    high_priority=bool(flags & Flag.HIGH_PRIORITY),
                )
            )
    return found


def test_run_of_adds_comes_out_in_order_with_every_change_of_ledger_key_and_flags() -> None:
    adds = [
        AddEntry(1, 0, KEY, entry_body(1, 0, lac=-1, rest=b"a"), version=2),
        AddEntry(1, 1, KEY, entry_body(1, 1, lac=0), version=2),
        AddEntry(2, 7, KEY, entry_body(2, 7, lac=5, rest=b"bb" * 500), version=2),
        AddEntry(2, 8, OTHER_KEY, entry_body(2, 8, lac=6), version=2),
        AddEntry(2, 9, OTHER_KEY, entry_body(2, 9, lac=6), recovery=True, version=2, high_priority=True),
    ]
    buffer = b"front" + b"".join(map(encode_request, adds)) + b"rest"
    run = scan_adds(buffer, 5, len(buffer) - 4)
    assert adds_of(run, buffer) == adds
    assert run.lacs == [-1, 0, 5, 6, 6]
    assert run.firsts == [0, 2, 3, 4]
    assert run.end == len(buffer) - 4


def test_run_ends_before_a_frame_that_is_not_whole_wherever_it_is_cut() -> None:
    first, second = add_frame(1, 0, rest=b"abc"), add_frame(1, 1)
    buffer = first + second
    for cut in range(len(buffer) + 1):
        run = scan_adds(buffer, 0, cut)
        whole = (cut >= len(first)) + (cut == len(buffer))
        assert run.entry_ids == [0, 1][:whole]
        assert run.end == [0, len(first), len(buffer)][whole]


def _with(frame: bytes, at: int, new: bytes) -> bytes:
    return frame[:at] + new + frame[at + len(new) :]


GOOD = add_frame(1, 1)
NOT_PLAIN_ADDS = {
    "another version": _with(GOOD, 4, b"\x01"),
    "a future version": _with(GOOD, 4, b"\x03"),
    "another operation": _with(GOOD, 5, b"\x02"),
    "negative ledger": _with(GOOD, 28, b"\xff"),
    "negative entry": _with(GOOD, 36, b"\x80"),
    "a body without room for its ids": _with(GOOD, 0, (40).to_bytes(4, "big")),
    "no body": _with(GOOD, 0, b"\0\0\0\0"),
    "a length beyond the limit": _with(GOOD, 0, b"\x7f\xff\xff\xff"),
    "a length that looks negative": _with(GOOD, 0, b"\xff\xff\xff\xff"),
    "a v3 request": encode_request(ReadEntry(1, 2)),
    "a read": encode_request(ReadEntry(1, 2, version=2)),
}


@every_row("what", NOT_PLAIN_ADDS)
def test_run_of_adds_ends_before(what: str) -> None:
    buffer = add_frame(1, 0) + NOT_PLAIN_ADDS[what] + add_frame(1, 2) * 3
    run = scan_adds(buffer, 0, len(buffer))
    assert run.entry_ids == [0]
    assert run.end == len(add_frame(1, 0))


def test_frame_beyond_the_limit_of_this_server_ends_the_run_and_is_an_error_for_the_decoder() -> None:
    frame = add_frame(1, 0, rest=bytes(100))
    decoder = RequestDecoder(limit=len(frame) - 1)
    assert decoder.scan_adds(frame, 0, len(frame)).entry_ids == []
    with pytest.raises(RemoteProtocolError, match="exceeds the limit"):
        decoder.decode(frame, 0, len(frame))
    assert RequestDecoder(limit=len(frame)).scan_adds(frame, 0, len(frame)).entry_ids == [0]


@given(st.lists(samples.requests_v2, max_size=8))
def test_scans_and_decoder_together_give_what_the_decoder_gives_alone(requests: list[AnyRequest]) -> None:
    buffer = b"".join(map(encode_request, requests))
    decoder, position = RequestDecoder(), 0
    found: list[AnyRequest | Refusal] = []
    while position < len(buffer):
        adds = decoder.scan_adds(buffer, position, len(buffer))
        found += adds_of(adds, buffer)
        reads = decoder.scan_reads(buffer, adds.end, len(buffer))
        found += [ReadEntry(*ids, version=2) for ids in zip(reads.ledger_ids, reads.entry_ids, strict=True)]
        if decoded := decoder.decode(buffer, reads.end, len(buffer)):
            found.append(decoded.request)
        position = decoded.end if decoded else reads.end
    assert found == requests


def test_scan_works_on_every_kind_of_buffer() -> None:
    frame = add_frame(1, 5, rest=b"x")
    for buffer in (frame, bytearray(frame), memoryview(frame), memoryview(bytearray(frame))):
        assert scan_adds(buffer, 0, len(frame)).entry_ids == [5]


def test_buffer_can_grow_after_a_scan() -> None:
    buffer = bytearray(add_frame(1, 5) + encode_request(ReadEntry(1, 2, version=2)))
    run = scan_adds(buffer, 0, len(buffer))
    reads = scan_reads(buffer, run.end, len(buffer))
    RequestDecoder().decode(buffer, run.end, len(buffer))
    buffer.extend(b"more")  # BufferError if a view were kept.
    assert reads.entry_ids == [2]


def test_add_responses_are_those_of_the_plain_encoder() -> None:
    answers = [(1, 0, Code.EOK), (2, 5, Code.EFENCED), (2**62, 2**61, Code.ETOOMANYREQUESTS)]
    expected = b"".join(encode_response(AddResponse(code, ledger, entry, version=2)) for ledger, entry, code in answers)
    ledgers, entries, codes = zip(*answers, strict=True)
    assert encode_add_responses(ledgers, entries, codes) == expected


def test_answers_to_stored_adds_are_made_from_the_adds_themselves() -> None:
    frames = add_frame(1, 5) + add_frame(1, 6) + add_frame(2**62, 2**61)
    offsets = scan_adds(frames, 0, len(frames)).offsets
    expected = encode_add_responses([1, 1, 2**62], [5, 6, 2**61], [0, 0, 0])
    assert encode_adds_done(frames, offsets) == expected
    assert encode_adds_done(frames, offsets[1:2]) == encode_add_responses([1], [6], [0])


def test_client_takes_add_responses_as_a_run_up_to_the_first_other_response() -> None:
    adds = encode_add_responses([1, 1, 2], [5, 6, 7], [0, Code.EFENCED, 0])
    read = encode_response(ReadResponse(Code.EOK, 1, 2, b"body", version=2))
    buffer = b"-" + adds + read + adds
    run = scan_add_responses(buffer, 1, len(buffer))
    assert (run.codes, run.ledger_ids, run.entry_ids) == ([0, 104, 0], [1, 1, 2], [5, 6, 7])
    rest, end = decode_responses(buffer, run.end, len(buffer), 2)
    assert (rest[0], end) == (ReadResponse(Code.EOK, 1, 2, b"body", version=2), len(buffer))
    for cut in range(1, len(adds) + 1):
        assert len(scan_add_responses(buffer, 1, 1 + cut).codes) == cut // 28


def test_read_response_header_and_entry_are_the_plain_response() -> None:
    assert read_response_header(5, 6, 4) + b"body" == encode_response(ReadResponse(Code.EOK, 5, 6, b"body", version=2))
    assert read_response_header(5, 6, 0, Code.ENOENTRY) == encode_response(ReadResponse(Code.ENOENTRY, 5, 6, version=2))


def test_reads_with_flags_or_of_the_last_entry_are_left_to_the_decoder() -> None:
    plain = encode_request(ReadEntry(1, 2, version=2))
    for other in (
        ReadEntry(1, 3, version=2, high_priority=True),
        ReadEntry(1, -1, version=2),
        ReadEntry(1, -1, fence=True, master_key=KEY, version=2),
    ):
        buffer = plain + encode_request(other) + plain
        assert scan_reads(buffer, 0, len(buffer)).entry_ids == [2]


def test_read_with_bytes_behind_it_is_left_to_the_decoder() -> None:
    plain = encode_request(ReadEntry(1, 2, version=2))
    longer = (40).to_bytes(4, "big") + plain[4:] + KEY
    buffer = plain + longer + plain
    run = scan_reads(buffer, 0, len(buffer))
    assert (run.entry_ids, run.end) == ([2], len(plain))
    decoded = RequestDecoder().decode(buffer, run.end, len(buffer))
    assert decoded == (ReadEntry(1, 2, version=2), len(plain) + len(longer))


def test_add_response_with_bytes_behind_it_ends_the_run() -> None:
    plain = encode_add_responses([1], [2], [0])
    longer = (28).to_bytes(4, "big") + plain[4:] + b"more"
    buffer = plain + longer + plain
    assert scan_add_responses(buffer, 0, len(buffer)).end == len(plain)
    assert decode_responses(buffer, 0, len(buffer), 2) == ([AddResponse(Code.EOK, 1, 2, version=2)] * 3, len(buffer))


def test_run_of_reads_is_what_the_plain_encoder_makes_one_by_one() -> None:
    one_by_one = b"".join(encode_request(ReadEntry(7, entry_id, version=2)) for entry_id in range(5))
    assert encode_reads(7, range(5)) == one_by_one
    assert encode_reads(7, []) == b""


def test_client_takes_read_responses_as_a_run_up_to_the_first_that_is_no_whole_one() -> None:
    whole = read_response_header(7, 1, 3) + b"one" + read_response_header(7, 2, 0, Code.ENOENTRY)
    for rest in (
        b"",
        read_response_header(7, 3, 3) + b"xy",
        encode_add_responses([7], [0], [0]),
        b"\0\0\0\1" * 9,
        (19).to_bytes(4, "big") + read_response_header(7, 3, 0)[4:],
        (2**31).to_bytes(4, "big") + read_response_header(7, 3, 0)[4:],
    ):
        buffer = bytearray(b"-" + whole + rest)
        run = scan_read_responses(buffer, 1, len(buffer), is_ours=False)
        assert run == (1 + len(whole), [(7, 1), (7, 2)], [0, Code.ENOENTRY], [b"one", b""])


def test_bodies_of_read_responses_are_copies_unless_the_buffer_is_ours() -> None:
    frame = read_response_header(7, 1, 3) + b"one"
    for is_ours, seen in ((False, b"one"), (True, b"ONE")):
        buffer = bytearray(frame)
        (body,) = scan_read_responses(buffer, 0, len(buffer), is_ours=is_ours).bodies
        buffer[-3:] = b"ONE"
        assert bytes(body) == seen


def test_entry_too_large_for_a_frame_is_refused_before_it_is_sent() -> None:
    encoder = AddEncoder(1, KEY, entry_digest(DigestType.CRC32C), limit=100)
    with pytest.raises(LocalProtocolError, match="exceeds the limit of 100"):
        encoder.header(0, -1, 100, bytes(100))
    with pytest.raises(LocalProtocolError, match="20 bytes"):
        AddEncoder(1, b"short", entry_digest(DigestType.CRC32C))
