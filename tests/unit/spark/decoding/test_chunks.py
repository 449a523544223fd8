"""Chunked messages: joined, also across splits; missing parts are distinguished from late ones."""

from __future__ import annotations

from collections.abc import Iterable

import pytest

from magnetar.errors import DataLossError
from magnetar.spark.decoding.columns import raw_columns
from magnetar.spark.decoding.decoder import EntryDecoder
from magnetar.spark.decoding.inputs import INCOMPLETE_MAX, DecodeOptions, EntryRun, StoredEntry
from magnetar.wire.compression import compress
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4
from tests.unit.spark.decoding.stored import LEDGER, TOPIC, EntryFields, Sent, decode, run, single, stored

VALUE = bytes(range(256)) * 4


def _chunks(count: int, value: bytes = VALUE, uuid: str = "p-1", **fields: object) -> list[bytes]:
    size = -(-len(value) // count)
    return [
        stored(
            value[number * size : (number + 1) * size],
            EntryFields(),
            uuid=uuid,
            num_chunks_from_msg=count,
            total_chunk_msg_size=len(value),
            chunk_id=number,
            **fields,
        )
        for number in range(count)
    ]


class Topic:
    """All entries of a topic, of which a split is read."""

    def __init__(self, entries: list[bytes], first: int = 100) -> None:
        self.entries = entries
        self.first = first
        self.looked_at: list[int] = []

    def split(self, start: int, end: int) -> EntryRun:
        return run(self.entries[start:end], first_entry_id=self.first + start)

    def before(self, topic: str, ledger_id: int, entry_id: int) -> Iterable[StoredEntry]:
        assert (topic, ledger_id) == (TOPIC, LEDGER)
        for at in range(entry_id - 1, self.first - 1, -1):
            self.looked_at.append(at)
            yield StoredEntry(LEDGER, at, self.entries[at - self.first])

    def options(self, *, fail_on_data_loss: bool = True) -> DecodeOptions:
        return DecodeOptions(entries_before=self.before, fail_on_data_loss=fail_on_data_loss)


def _rows(topic: Topic, start: int, end: int) -> list[tuple[bytes, str]]:
    found = decode(topic.split(start, end), options=topic.options())
    return [(row["value"], row["message_id"]) for row in found]


def test_chunks_are_one_message_at_the_place_of_the_last() -> None:
    topic = Topic([single(Sent(b"a")), *_chunks(3), single(Sent(b"b"))])
    assert _rows(topic, 0, 5) == [(b"a", "7:100:2:-1"), (VALUE, "7:103:2:-1"), (b"b", "7:104:2:-1")]
    assert not topic.looked_at


def test_a_compressed_message_is_joined_before_it_is_decompressed() -> None:
    chunks = _chunks(3, compress(LZ4, VALUE), compression=LZ4, uncompressed_size=len(VALUE))
    assert [row["value"] for row in decode(run(chunks))] == [VALUE]


def test_chunks_of_two_producers_may_be_mixed() -> None:
    one, other = _chunks(2, b"one!", "p-1"), _chunks(2, b"other!", "q-1")
    rows = _rows(Topic([one[0], other[0], one[1], other[1]]), 0, 4)
    assert [value for value, _ in rows] == [b"one!", b"other!"]


@pytest.mark.parametrize("cut", range(7))
def test_however_a_topic_is_split_each_message_comes_once(cut: int) -> None:
    topic = Topic([single(Sent(b"a")), *_chunks(4), single(Sent(b"b"))])
    whole = _rows(topic, 0, 6)
    assert len(whole) == 3
    assert _rows(topic, 0, cut) + _rows(topic, cut, 6) == whole


def test_looking_back_goes_no_further_than_the_first_chunk() -> None:
    topic = Topic([*[single(Sent())] * 50, *_chunks(3)])
    _rows(topic, 52, 53)
    assert topic.looked_at == [151, 150]


def test_chunks_before_the_first_that_is_left_are_no_loss(caplog: pytest.LogCaptureFixture) -> None:
    topic = Topic(_chunks(3)[1:])
    decoder = EntryDecoder(raw_columns(include_headers=False), topic.options())
    assert not [*decoder.feed(topic.split(0, 2)), *decoder.finish()]
    assert "a message of 3 chunks is skipped" in caplog.text


def test_a_chunk_that_is_missing_in_the_middle_is_a_loss() -> None:
    chunks = _chunks(4)
    topic = Topic([*chunks[:1], *chunks[2:], single(Sent(b"b"))])
    with pytest.raises(DataLossError, match=r"entry 7:102: a message of 4 chunks .* failOnDataLoss=false"):
        decode(topic.split(0, 4), options=topic.options())
    rows = decode(topic.split(0, 4), options=topic.options(fail_on_data_loss=False))
    assert [row["value"] for row in rows] == [b"b"]


def test_without_a_way_to_look_back_missing_chunks_are_a_loss() -> None:
    with pytest.raises(DataLossError):
        decode(run(_chunks(3)[1:]))


def test_chunks_that_were_sent_again_make_one_message() -> None:
    chunks = _chunks(3)
    topic = Topic([chunks[0], chunks[1], chunks[0], chunks[1], chunks[1], chunks[2], chunks[1], chunks[2]])
    assert [place for _, place in _rows(topic, 0, 8)] == ["7:105:2:-1"]
    assert _rows(topic, 4, 6) == [(VALUE, "7:105:2:-1")]
    assert not _rows(topic, 6, 8)


def test_many_messages_at_once_are_found_again_by_looking_back() -> None:
    messages = [_chunks(2, b"%04d" % number, str(number)) for number in range(INCOMPLETE_MAX + 5)]
    topic = Topic([first for first, _ in messages] + [last for _, last in messages])
    rows = _rows(topic, 0, len(topic.entries))
    assert [value for value, _ in rows] == [b"%04d" % number for number in range(len(messages))]
    assert topic.looked_at
