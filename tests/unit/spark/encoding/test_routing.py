"""Rows find their topic and partition, as Pulsar's own clients choose it."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.topics import java_hash
from magnetar.errors import SinkDataError
from magnetar.spark.encoding.keys import java_hashes
from tests.unit.spark.encoding.decoded import SEAL, TOPIC, decode, encode


@given(st.lists(st.none() | st.text(st.characters(codec="utf-8"), max_size=12), max_size=30), st.integers(0, 5))
def test_hashes_of_a_column_are_those_of_the_java_client(keys: list[str | None], start: int) -> None:
    column = pa.array(keys, pa.string()).cast(pa.binary()).slice(start)

    assert java_hashes(column).tolist() == [java_hash(key or "") for key in keys[start:]]


def test_rows_of_one_key_stay_together_and_in_order() -> None:
    keys = [f"key-{number % 13}" for number in range(2_000)]
    values = [b"%d" % number for number in range(2_000)]
    batch = pa.record_batch({"value": values, "key": keys})

    found = decode(encode([batch.slice(0, 700), batch.slice(700)], partitions=4))

    for partition in range(4):
        expected = [value for key, value in zip(keys, values, strict=True) if java_hash(key) % 4 == partition]
        assert [each.value for each in found.get(f"{TOPIC}-partition-{partition}", [])] == expected


def test_rows_without_a_key_go_round_an_entry_at_a_time() -> None:
    values = [b"%05d" % number * 20 for number in range(3_000)]
    seal = dataclasses.replace(SEAL, entry_bytes=20_000)

    batch = pa.record_batch({"value": values})

    entries = encode([batch.slice(at, 70) for at in range(0, 3_000, 70)], seal, partitions=3)

    whole = encode([batch], seal, partitions=3)
    assert sorted(entry.body[-1_000:] for entry in entries) == sorted(entry.body[-1_000:] for entry in whole)
    found = decode(entries)
    assert sorted(found) == [f"{TOPIC}-partition-{number}" for number in range(3)]
    assert sorted(each.value or b"" for part in found.values() for each in part) == values
    assert max(map(len, found.values())) < 2 * min(map(len, found.values()))
    assert len(entries) < 3_000 * 107 / 20_000 + 2 * 3


def test_partition_and_topic_columns_decide_where_they_say_something() -> None:
    batch = pa.record_batch(
        {
            "value": [b"0", b"1", b"2", b"3"],
            "key": ["a", "a", "a", "a"],
            "topic": ["x", "x", "y", "y"],
            "partition": pa.array([1, None, 0, -1], pa.int32()),
        }
    )
    home = java_hash("a") % 2

    found = {
        topic: [each.value for each in rows] for topic, rows in decode(encode([batch], partitions=2, topic="")).items()
    }

    expected: dict[str, list[bytes]] = {}
    for topic, value in (
        ("x-partition-1", b"0"),
        (f"x-partition-{home}", b"1"),
        ("y-partition-0", b"2"),
        (f"y-partition-{home}", b"3"),
    ):
        expected.setdefault(topic, []).append(value)
    assert found == expected


def test_the_option_topic_wins_over_the_column() -> None:
    batch = pa.record_batch({"value": [b"0"], "topic": ["other"]})

    assert list(decode(encode([batch]))) == [TOPIC]


@pytest.mark.parametrize(
    ("columns", "words"),
    [
        ({"value": [b"v"], "partition": [7]}, "partition 7 of a topic that has 2"),
        ({"value": [b"v"], "topic": pa.array([None], pa.string())}, "without a topic"),
        ({"value": [b"v"]}, "no topic"),
    ],
)
def test_rows_that_cannot_be_placed_are_refused(columns: dict[str, list[object]], words: str) -> None:
    with pytest.raises(SinkDataError, match=words):
        encode([pa.record_batch(columns)], partitions=2, topic="" if "partition" not in columns else TOPIC)
