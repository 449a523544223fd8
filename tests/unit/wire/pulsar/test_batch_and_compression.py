"""Looking inside a payload: the official client's batches, in every compression, and payloads that lie."""

from __future__ import annotations

import sys
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import MalformedEntryError, MissingDependencyError
from magnetar.wire.compression import compress, decompress
from magnetar.wire.pulsar.entry import encode_batched_message, messages_of_batch, parse_entry
from magnetar.wire.pulsar.frames import FrameDecoder
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    LZ4,
    NONE,
    SNAPPY,
    ZLIB,
    ZSTD,
    CompressionType,
    SingleMessageMetadata,
)
from tests.unit.wire.pulsar.samples import golden

KINDS = [NONE, LZ4, ZLIB, ZSTD, SNAPPY]
TEXT = b"words that come again and again " * 20


def _single(payload: bytes, **fields: object) -> bytes:
    return encode_batched_message(SingleMessageMetadata(**fields), payload)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS, ids=CompressionType.Name)
def test_a_batch_of_the_official_client_is_opened(kind: int) -> None:
    (frame,) = golden()[f"send batch {CompressionType.Name(kind).lower()}"]
    ((decoded, _),) = FrameDecoder().frames(frame, 0, len(frame))
    assert decoded.headers_and_payload is not None
    head = parse_entry(decoded.headers_and_payload)
    assert head.metadata.compression == kind
    compressed = decoded.headers_and_payload[head.payload_offset :]
    payload = decompress(kind, compressed, head.metadata.uncompressed_size)
    messages = list(messages_of_batch(payload, head.metadata.num_messages_in_batch))
    assert [bytes(message.payload) for message in messages] == [b"message %d " % at * 20 for at in range(3)]
    assert [message.metadata.partition_key for message in messages] == ["k0", "k1", "k2"]
    assert [message.metadata.sequence_id for message in messages] == [0, 1, 2]


@pytest.mark.parametrize("kind", KINDS, ids=CompressionType.Name)
@pytest.mark.parametrize("data", [TEXT, b"x", b""], ids=["text", "one byte", "nothing"])
def test_what_was_compressed_comes_out_again(kind: int, data: bytes) -> None:
    packed = compress(kind, data)
    assert decompress(kind, memoryview(packed), len(data)) == data


@pytest.mark.parametrize("kind", [LZ4, ZLIB, ZSTD, SNAPPY], ids=CompressionType.Name)
@pytest.mark.parametrize("size", [len(TEXT) - 1, len(TEXT) + 1, 0])
def test_a_payload_of_another_size_than_its_metadata_says_is_refused(kind: int, size: int) -> None:
    with pytest.raises(MalformedEntryError):
        decompress(kind, compress(kind, TEXT), size)


@pytest.mark.parametrize("kind", [LZ4, ZLIB, ZSTD, SNAPPY], ids=CompressionType.Name)
def test_bytes_that_are_not_compressed_are_refused(kind: int) -> None:
    with pytest.raises(MalformedEntryError, match="does not decompress"):
        decompress(kind, b"\xff garbage \xff\xff\xff", 100)


def test_a_payload_that_would_grow_beyond_the_limit_is_refused_unopened() -> None:
    with pytest.raises(MalformedEntryError, match="exceeds the limit of 1000"):
        decompress(ZLIB, zlib.compress(bytes(2_000)), 2_000, size_max=1_000)


def test_an_unknown_compression_is_refused() -> None:
    with pytest.raises(MalformedEntryError, match="unknown compression, number 77"):
        decompress(77, b"", 0)


def test_a_missing_library_is_named_with_what_to_do(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "cramjam", None)
    with pytest.raises(MissingDependencyError, match=r"pip install 'magnetar\[compression\]'"):
        compress(LZ4, b"x")
    assert decompress(ZLIB, compress(ZLIB, TEXT), len(TEXT)) == TEXT


@given(st.lists(st.tuples(st.binary(max_size=50), st.text(max_size=5)), max_size=6))
def test_messages_of_a_batch_come_out_as_they_went_in(messages: list[tuple[bytes, str]]) -> None:
    payload = b"".join(_single(body, partition_key=key) for body, key in messages) + b"behind the last"
    found = messages_of_batch(payload, len(messages))
    assert [(bytes(body), metadata.partition_key) for metadata, body in found] == messages


@pytest.mark.parametrize(
    ("payload", "what"),
    [
        (_single(b"one"), "before a message that it counts"),
        (_single(b"one") + b"\xff\xff\xff\xff", "metadata up to"),
        (_single(b"one") + _single(b"two")[:-1], "a message of 3 bytes"),
        (_single(b"one") + b"\x00\x00\x00\x00", "without payload_size"),
        (_single(b"one") + b"\x00\x00\x00\x02\xff\xff", "not protobuf"),
        (_single(b"one") + b"\x00\x00\x00\x0b\x18" + b"\xff" * 9 + b"\x01", "a message of -1 bytes"),
    ],
)
def test_a_batch_that_is_cut_or_lies_is_refused(payload: bytes, what: str) -> None:
    with pytest.raises(MalformedEntryError, match=what):
        list(messages_of_batch(payload, 2))
