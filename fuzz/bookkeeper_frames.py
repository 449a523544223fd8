"""The decoders of BookKeeper's wire protocol, in both roles; what bookies and clients read from each other.

Streams:   whole frames with their lengths, read as a bookie reads a socket: runs first, then one by one.
Bodies:    the length is made right again, so that every mutation reaches the decoder behind it.
Checked:   besides that nothing but the promised errors comes out: positions only grow, scans and decoder agree,
           what was decoded can be encoded and is the same again, and every refusal is an answer that a client reads.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from fuzz import bookkeeper_answers
from fuzz.bookkeeper_answers import first_frame_is_whole
from fuzz.engine import Target
from magnetar.errors import DigestMismatchError, RemoteProtocolError
from magnetar.wire.bookkeeper.availability import AvailabilityEncoder, decode_availability
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest
from magnetar.wire.bookkeeper.ends import RequestDecoder, decode_response, encode_request
from magnetar.wire.bookkeeper.frames import PREFIX, PREFIX_BYTES, VERSION_MAX, Flag, Operation, PacketHeader
from magnetar.wire.bookkeeper.hot_path import AddRun, parse_context
from magnetar.wire.bookkeeper.messages import AddEntry, AnyRequest, ReadEntry, Refusal

GOLDEN = Path(__file__).resolve().parent.parent / "tests" / "golden" / "bookkeeper-frames.json"
_LARGEST_SEED_BYTES = 1_000
_LEDGER, _ENTRY = 0x0102030405060708, 77  # Of every entry in the golden file.
_PROTOCOL = (RemoteProtocolError,)
_V3_HEADER_TAG = 0x0A
_UNREADABLE = "v2-add-response-version-5"  # What a bookie says to a client from the future.


def targets() -> list[Target]:
    golden = {name: bytes.fromhex(value) for name, value in json.loads(GOLDEN.read_text()).items()}
    small = {name: value for name, value in golden.items() if len(value) < _LARGEST_SEED_BYTES}
    frames = {name: value for name, value in small.items() if name.startswith(("v2-", "v3-")) and name != _UNREADABLE}
    requests_v2 = [value for name, value in frames.items() if name.startswith("v2-") and "response" not in name]
    requests_v3 = [value for name, value in frames.items() if name.startswith("v3-") and "response" not in name]
    v2 = [value for name, value in frames.items() if name.startswith("v2-") and "response" in name]
    v3 = [value for name, value in frames.items() if name.startswith("v3-") and "response" in name]
    return [
        Target(
            "bookkeeper-request-stream",
            [*_streams(requests_v2), *_streams(requests_v3), requests_v3[0] + requests_v2[0]],
            _request_stream,
            _PROTOCOL,
            first_frame_is_whole,
        ),
        Target("bookkeeper-request", _bodies(requests_v2 + requests_v3), _request, _PROTOCOL, _looks_like_a_request),
        *bookkeeper_answers.targets(v2, v3, _is_compact, _is_protobuf),
        *(_entry_target(kind, small) for kind in DigestType),
        Target("bookkeeper-availability", _availability_corpus(small), _availability, _PROTOCOL),
    ]


def _bodies(frames: list[bytes]) -> list[bytes]:
    return [frame[PREFIX_BYTES:] for frame in frames]


def _streams(frames: list[bytes]) -> list[bytes]:
    """Neighbours in threes, so that there are runs, and changes from one kind to another."""
    return [b"".join(frames[at : at + 3]) for at in range(len(frames))] + [frame * 3 for frame in frames]


# --- a bookie reads ---------------------------------------------------------------------------------------------------


def _request_stream(data: bytes) -> object:
    decoder, position, count = RequestDecoder(), 0, 0
    while True:
        adds = decoder.scan_adds(data, position, len(data))
        _check_run(data, position, adds.end, _adds(data, adds))
        reads = decoder.scan_reads(data, adds.end, len(data))
        ids = zip(reads.ledger_ids, reads.entry_ids, strict=True)
        _check_run(data, adds.end, reads.end, [ReadEntry(*one, version=VERSION_MAX) for one in ids])
        assert position <= adds.end <= reads.end <= len(data), "a scan went backwards or beyond the end"
        decoded = decoder.decode(data, reads.end, len(data))
        count += len(adds.entry_ids) + len(reads.entry_ids)
        if decoded is None:
            return count
        assert decoded.end > reads.end, "a decoder went backwards"
        count, position = count + 1, decoded.end


def _adds(data: bytes, run: AddRun) -> list[AddEntry]:
    found = []
    ends = [*run.firsts, len(run.entry_ids)][1:]
    for first, end, context in zip(run.firsts, ends, run.contexts, strict=True):
        ledger_id, key, flags = parse_context(context)
        for index in range(first, end):
            body = data[run.offsets[index] : run.offsets[index] + run.lengths[index]]
            found.append(
                AddEntry(
                    ledger_id,
                    run.entry_ids[index],
                    key,
                    body,
                    recovery=bool(flags & Flag.RECOVERY_ADD),
                    version=VERSION_MAX,
                    high_priority=bool(flags & Flag.HIGH_PRIORITY),
                )
            )
    return found


def _check_run(data: bytes, start: int, end: int, found: Sequence[AnyRequest]) -> None:
    decoder, position = RequestDecoder(), start
    for request in found:
        decoded = decoder.decode(data, position, end)
        assert decoded is not None, "a scan took more than there is"
        assert decoded.request == request, "the scan and the decoder disagree"
        position = decoded.end
    assert position == end, "the scan skipped something"


def _request(body: bytes) -> object:
    frame = PREFIX.pack(len(body)) + body
    decoded = RequestDecoder().decode(frame, 0, len(frame))
    assert decoded is not None, "a whole frame was not decoded"
    request = decoded.request
    if isinstance(request, Refusal):
        _check_refusal(request, frame)
    else:
        _check_again(request)
    return request


def _check_refusal(refusal: Refusal, frame: bytes) -> None:
    version = 3 if frame[PREFIX_BYTES] > VERSION_MAX and refusal.answer[PREFIX_BYTES] == _V3_HEADER_TAG else 2
    if refusal.code is Code.EBADVERSION and version != 3:
        return  # Answered in the version that was asked for, which no client of ours reads.
    answer = decode_response(refusal.answer, 0, len(refusal.answer), version)
    assert answer is not None, "an answer that is not whole"
    assert answer.response.code is refusal.code, "an answer with another code"


def _check_again(request: AnyRequest) -> None:
    encoded = encode_request(request)
    again = RequestDecoder().decode(encoded, 0, len(encoded))
    assert again is not None, "an encoded request is not whole"
    assert again.request == request, "another request after a round"


# --- what a client opens ----------------------------------------------------------------------------------------------


def _entry_target(kind: DigestType, golden: dict[str, bytes]) -> Target:
    digest = entry_digest(kind, b"secret")
    corpus = [value for name, value in golden.items() if name.startswith("entry") and f"/{kind.name}/secret" in name]
    return Target(
        f"bookkeeper-entry-{kind.name.lower()}",
        corpus,
        lambda data: digest.open(_LEDGER, _ENTRY, data),
        (DigestMismatchError,),
        lambda data: len(data) >= digest.overhead_bytes,
    )


# --- lists of entries -------------------------------------------------------------------------------------------------


def _availability_corpus(golden: dict[str, bytes]) -> list[bytes]:
    made = [value for name, value in golden.items() if name.startswith("entries/")]
    encoder = AvailabilityEncoder()
    encoder.add(entry for entry in range(100) if entry % 3)
    return [*made, encoder.encoded()]


def _availability(data: bytes) -> object:
    groups = decode_availability(data)
    assert all(group.count > 0 and group.first in group for group in groups), "a group without an entry"
    return groups


# --- how deep the mutations reach -------------------------------------------------------------------------------------


def _looks_like_a_request(body: bytes) -> bool:
    return _is_protobuf(body) or _is_compact(body)


def _is_protobuf(body: bytes) -> bool:
    return body[:1] == bytes([_V3_HEADER_TAG])


def _is_compact(body: bytes) -> bool:
    header = PacketHeader.of(int.from_bytes(body[:4], "big"))
    return header.version_is_known and header.operation in {int(operation) for operation in Operation}
