"""Rows find their topic and partition, as Pulsar's own clients choose it."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.client.topics import java_hash
from magnetar.errors import SinkDataError
from magnetar.spark.encoding.messages import Messages, java_hashes, read_keys
from magnetar.spark.encoding.routing import Router, Target
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


def orders_of_four(name: str) -> Target:
    return Target(name, 4 if name == "orders" else 0)


@pytest.mark.parametrize(
    "names", [("orders", "orders-partition-2", "audit"), ("orders-partition-2", "audit", "orders")]
)
def test_a_topic_and_one_of_its_partitions_are_written_side_by_side(names: tuple[str, ...]) -> None:
    rows = [(name, f"key-{number}") for number in range(20) for name in names]
    router = Router(orders_of_four, "", 0, 1 << 19)
    messages = Messages(pa.array([b""] * len(rows)), read_keys(pa.array([key for _, key in rows])))

    found = router.route(messages, pa.array([name for name, _ in rows]), None)

    expected = [f"orders-partition-{java_hash(key) % 4}" if name == "orders" else name for name, key in rows]
    assert [router.destinations[number] for number in found] == expected
    assert len(router.destinations) == len(set(router.destinations))


def test_rows_of_a_partition_are_written_as_the_source_gives_them() -> None:
    """Their topic is the partition, and the column partition has its number."""
    batch = pa.record_batch(
        {"value": [b"0", b"1"], "topic": ["x-partition-1", "x-partition-0"], "partition": pa.array([1, 0], pa.int32())}
    )

    found = decode(encode([batch], topic=""))

    assert {topic: [each.value for each in rows] for topic, rows in found.items()} == {
        "x-partition-1": [b"0"],
        "x-partition-0": [b"1"],
    }


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
