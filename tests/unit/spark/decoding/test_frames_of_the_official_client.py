"""What the official client sent once, as tests/golden keeps it, decoded."""

from __future__ import annotations

import pytest

from magnetar.wire.pulsar.frames import FrameDecoder
from tests.unit.spark.decoding.stored import decode, reference, run
from tests.unit.wire.pulsar.samples import golden


def _entries(name: str) -> list[bytes]:
    decoder = FrameDecoder()
    found = [decoder.decode(frame, 0, len(frame)).headers_and_payload for frame in golden()[name]]
    return [bytes(each) for each in found if each is not None]


@pytest.mark.parametrize("name", ["plain", *(f"batch {codec}" for codec in ("none", "lz4", "zlib", "zstd", "snappy"))])
def test_messages_come_out_as_one_by_one(name: str) -> None:
    made = run(_entries(f"send {name}"))
    rows = decode(made)
    assert rows == [{**dict.fromkeys(rows[0]), **row} for row in reference(made)]


def test_keys_and_properties_are_those_that_were_given() -> None:
    rows = decode(run(_entries("send batch lz4")))
    assert [(row["key"], row["properties"], row["sequence_id"]) for row in rows] == [
        (b"k%d" % number, {"n": str(number)}, number) for number in range(3)
    ]
    assert {row["value"][:10] for row in rows} == {b"message %d " % number for number in range(3)}


def test_chunks_are_joined() -> None:
    chunks = _entries("send chunked")
    (row,) = decode(run(chunks))
    assert row["message_id"] == "7:102:2:-1"
    assert len(row["value"]) > max(map(len, chunks))
