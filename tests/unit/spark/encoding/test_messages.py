"""Record batches become batches of messages that any Pulsar client reads."""

from __future__ import annotations

import dataclasses
from datetime import UTC, datetime

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.wire.pulsar.entry import parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD
from tests.unit.spark.encoding.decoded import SEAL, TOPIC, Decoded, decode, encode

ROWS = st.lists(
    st.builds(
        Decoded,
        value=st.none() | st.binary(max_size=300),
        key=st.none() | st.binary(max_size=20) | st.text(max_size=20).map(str.encode),
        event_ms=st.integers(0, 2**63 - 1),
        properties=st.dictionaries(st.text(max_size=5), st.text(max_size=200), max_size=3),
    ),
    min_size=1,
    max_size=40,
)


def batch_of(rows: list[Decoded]) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays(
        [
            pa.array([row.value for row in rows], pa.binary()),
            pa.array([row.key for row in rows], pa.binary()),
            pa.array([row.event_ms or None for row in rows], pa.int64()),
            pa.array([list(row.properties.items()) or None for row in rows], pa.map_(pa.string(), pa.string())),
        ],
        ["value", "key", "event_time", "properties"],
    )


@given(rows=ROWS, cut=st.integers(0, 40), entry_bytes=st.integers(1, 2000), kind=st.sampled_from([NONE, LZ4, ZSTD]))
@settings(max_examples=40)
def test_what_is_encoded_comes_out_again_in_order_whatever_the_cut(
    rows: list[Decoded], cut: int, entry_bytes: int, kind: int
) -> None:
    seal = dataclasses.replace(SEAL, entry_bytes=entry_bytes, compression=kind)
    whole = batch_of(rows)
    halves = [half for half in (whole.slice(0, cut), whole.slice(cut)) if half.num_rows]

    entries = encode(halves, seal)

    assert decode(entries) == {TOPIC: rows}
    assert [entry.body for entry in entries] == [entry.body for entry in encode([whole], seal)]


@pytest.mark.parametrize("kind", [NONE, LZ4, ZLIB, ZSTD, SNAPPY])
def test_every_compression_can_be_opened_again(kind: int) -> None:
    rows = [Decoded(b"value %d " % number * 20) for number in range(1000)]
    batch = pa.record_batch({"value": pa.array([row.value for row in rows])})

    entries = encode([batch], dataclasses.replace(SEAL, compression=kind))

    assert decode(entries) == {TOPIC: rows}
    assert parse_entry(entries[0].body).metadata.compression == kind


def test_strings_and_timestamps_are_taken_as_spark_sends_them() -> None:
    at = datetime(2026, 11, 16, 12, 0, 0, 123_999, tzinfo=UTC)
    batch = pa.record_batch(
        {
            "value": pa.array(["grüß", None], pa.string()),
            "key": pa.array(["k", None], pa.string()),
            "event_time": pa.array([at, None], pa.timestamp("us", tz="UTC")),
            "headers": pa.array(
                [[{"key": "a", "value": b"b"}, {"key": "c", "value": None}], None],
                pa.list_(pa.struct([("key", pa.string()), ("value", pa.binary())])),
            ),
        }
    )

    assert decode(encode([batch]))[TOPIC] == [
        Decoded("grüß".encode(), b"k", int(at.timestamp() * 1000), {"a": "b", "c": ""}),
        Decoded(None),
    ]


def test_entries_are_about_as_large_as_asked_for_and_keep_their_rows_in_order() -> None:
    values = [b"%06d" % number * 20 for number in range(5_000)]
    seal = dataclasses.replace(SEAL, entry_bytes=50_000)

    entries = encode([pa.record_batch({"value": pa.array(values)}).slice(at, 500) for at in range(0, 5_000, 500)], seal)

    assert [each.value for each in decode(entries)[TOPIC]] == values
    assert all(49_000 < len(entry.body) < 50_200 for entry in entries[:-1])
    numbers = [entry.sequence_id for entry in entries]
    assert numbers == list(range((3 << 32) + (5 << 20), (3 << 32) + (5 << 20) + len(entries)))


def test_metadata_of_an_entry_names_producer_time_and_messages() -> None:
    metadata = parse_entry(encode([pa.record_batch({"value": [b"a", b"b"], "key": ["k1", "k2"]})])[0].body).metadata

    assert (metadata.producer_name, metadata.publish_time) == ("spark/query", 1_700_000_000_000)
    assert (metadata.num_messages_in_batch, metadata.partition_key) == (2, "k1")
    assert not metadata.HasField("highest_sequence_id")


@pytest.mark.parametrize("kind", [NONE, LZ4])
def test_a_value_beyond_the_limit_is_cut_into_chunks_at_its_place(kind: int) -> None:
    seal = dataclasses.replace(SEAL, message_bytes_max=10_000, entry_bytes=4_000, compression=kind)
    large = bytes(number * 7919 % 251 for number in range(64_000))
    rows = [
        Decoded(b"first", b"k"),
        Decoded(large, b"k\xff", 17, {"a": "b"}),
        Decoded(large[:9_000], b"k"),
        Decoded(b"last", b"k"),
    ]

    entries = encode([batch_of(rows)], seal)

    assert decode(entries) == {TOPIC: rows}
    assert max(len(entry.body) for entry in entries) <= 10_000
    assert len({entry.sequence_id for entry in entries}) == len(entries)


def test_properties_hidden_behind_a_null_do_not_come_to_light() -> None:
    offsets = pa.py_buffer(b"\x00\x00\x00\x00\x01\x00\x00\x00\x02\x00\x00\x00")
    kind = pa.map_(pa.string(), pa.string())
    pairs = pa.StructArray.from_arrays([pa.array(["a", "b"]), pa.array(["1", "2"])], ["key", "value"])
    hidden = pa.MapArray.from_buffers(kind, 2, [pa.py_buffer(b"\x02"), offsets], children=[pairs])
    batch = pa.RecordBatch.from_arrays([pa.array([b"x", b"y"]), hidden], ["value", "properties"])

    assert [each.properties for each in decode(encode([batch]))[TOPIC]] == [{}, {"b": "2"}]
