"""The quick ways of the busiest path say the same as the plain ones."""

from __future__ import annotations

import random

import pytest

from magnetar.errors import LocalProtocolError
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.digests import DigestType, entry_digest, master_key
from magnetar.wire.bookkeeper.ends import encode_request
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX
from magnetar.wire.bookkeeper.hot_path import (
    AddEncoder,
    _scan_various_add_responses,
    encode_add_responses,
    read_response_header,
    scan_add_responses,
)
from magnetar.wire.bookkeeper.messages import V2, AddEntry

KEY = master_key(b"secret")


@pytest.mark.parametrize("rest", [b"", b"\0\0\0\x18", read_response_header(1, 2, 0), read_response_header(1, 2, 60)])
def test_answers_alike_are_scanned_like_any_others(rest: bytes) -> None:
    chance = random.Random(7)
    for _ in range(300):
        count, ledgers, codes = chance.randrange(40), chance.choice(([5], [5, 6])), chance.choice(([0], [0, 101]))
        answers = encode_add_responses(
            [chance.choice(ledgers) for _ in range(count)],
            [chance.randrange(2**40) for _ in range(count)],
            [chance.choice(codes) for _ in range(count)],
        )
        buffer = b"---" + answers + rest
        whole = (len(answers) + len(rest)) // 28 * 28
        expected = _scan_various_add_responses(memoryview(buffer)[3 : 3 + whole], 3)
        assert scan_add_responses(buffer, 3, len(buffer)) == expected
        assert expected.end == 3 + len(answers)


def test_frames_alike_that_are_no_answers_to_adds_are_left_alone() -> None:
    reads = read_response_header(1, 2, 0, Code.ENOENTRY) * 5
    assert scan_add_responses(reads, 0, len(reads)) == (0, [], [], [])
    assert scan_add_responses(reads, 0, 0) == (0, [], [], [])


@pytest.mark.parametrize("kind", DigestType)
@pytest.mark.parametrize("payload", [b"", b"payload", memoryview(b"payload"), bytearray(5000)])
def test_header_is_the_plain_request_up_to_the_payload(kind: DigestType, payload: bytes) -> None:
    digest = entry_digest(kind, b"secret")
    header = AddEncoder(7, KEY, digest).header(3, 2, 1000, payload)
    body = digest.seal(7, 3, 2, 1000, payload) + payload
    assert header + payload == encode_request(AddEntry(7, 3, KEY, body, version=V2))
    assert digest.open(7, 3, body).payload == payload


@pytest.mark.parametrize("kind", DigestType)
def test_frame_that_is_too_long_is_refused_before_it_is_made(kind: DigestType) -> None:
    digest = entry_digest(kind, b"secret")
    encoder = AddEncoder(7, KEY, digest)
    most = FRAME_BYTES_MAX - 28 - digest.overhead_bytes
    assert encoder.header(0, -1, most, bytes(most))
    with pytest.raises(LocalProtocolError):
        encoder.header(0, -1, most + 1, bytes(most + 1))
