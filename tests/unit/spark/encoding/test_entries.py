"""How messages are gathered into entries, and what numbers these get."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from magnetar.client.topics import java_hash
from magnetar.spark.encoding import encoder as encoder_module
from magnetar.spark.encoding.encoder import EntryEncoder, RowNumbers, TaskNumbers
from magnetar.spark.encoding.layout import plan_layout, read_values
from magnetar.spark.encoding.routing import Router, Target
from magnetar.wire.pulsar.entry import parse_entry
from tests.unit.spark.encoding.decoded import SEAL, TOPIC, decode, encode, make_encoder


def test_numbers_of_a_task_are_its_own_and_grow() -> None:
    first, second = TaskNumbers(2, 7), TaskNumbers(2, 8)

    assert [first.take(100), first.take(1)] == [((2 << 32) + (7 << 20),) * 2, ((2 << 32) + (7 << 20) + 1,) * 2]
    assert second.take(1)[0] - (2 << 32) == 8 << 20


def test_numbers_of_rows_cover_every_row_once() -> None:
    numbers = RowNumbers(1)

    assert [numbers.take(10), numbers.take(1), numbers.take(5)] == [
        (2**32, 2**32 + 9),
        (2**32 + 10, 2**32 + 10),
        (2**32 + 11, 2**32 + 15),
    ]


def test_with_row_numbers_an_entry_says_its_first_and_last_and_each_destination_counts_for_itself() -> None:
    batch = pa.record_batch({"value": [b"x" * 50] * 400, "key": [f"k{number % 9}" for number in range(400)]})
    layout = plan_layout(batch.schema, is_typed=False)
    router = Router(lambda name: Target(name, 2), TOPIC, 0, 10_000)
    seal = dataclasses.replace(SEAL, entry_bytes=4_000)
    encoder = EntryEncoder(layout, read_values, router, seal, lambda: RowNumbers(4))

    entries = [*encoder.encode(batch), *encoder.finish()]

    for partition in range(2):
        mine = [entry for entry in entries if entry.topic == f"{TOPIC}-partition-{partition}"]
        following = 4 << 32
        for entry in mine:
            metadata = parse_entry(entry.body).metadata
            assert (entry.sequence_id, entry.highest_sequence_id) == (following, following + entry.rows - 1)
            assert (metadata.sequence_id, metadata.highest_sequence_id) == (following, following + entry.rows - 1)
            following += entry.rows
        rows = sum(java_hash(f"k{number % 9}") % 2 == partition for number in range(400))
        assert following - (4 << 32) == rows


def test_what_waits_for_full_entries_is_bounded_over_all_destinations(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_PENDING_BYTES_MAX", 20_000)
    batch = pa.record_batch({"value": [b"x" * 100] * 1_000, "key": [f"k{number}" for number in range(1_000)]})
    encoder = make_encoder(batch.schema, partitions=50)

    entries = list(encoder.encode(batch))

    assert sum(entry.rows for entry in entries) == 1_000
    assert not list(encoder.finish())


def test_batches_beyond_one_slice_keep_their_order(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder_module, "_SLICE_BYTES", 3_000)
    values = [b"%04d" % number * 10 for number in range(1_000)]
    values[500] = b"L" * 9_000
    seal = dataclasses.replace(SEAL, message_bytes_max=8_000, entry_bytes=2_000)

    found = decode(encode([pa.record_batch({"value": values})], seal))

    assert [each.value for each in found[TOPIC]] == values


def test_a_long_key_does_not_push_an_entry_beyond_the_limit() -> None:
    seal = dataclasses.replace(SEAL, message_bytes_max=10_000, entry_bytes=7_000)
    batch = pa.record_batch({"value": [b"v" * size for size in range(0, 8_000, 500)], "key": ["k" * 2_500] * 16})

    entries = encode([batch], seal)

    assert max(len(entry.body) for entry in entries) <= 10_000
    assert [each.value for each in decode(entries)[TOPIC]] == batch.column("value").to_pylist()


def test_by_key_no_entry_has_two_keys_and_each_keeps_its_order() -> None:
    keys = [None if number % 7 == 0 else f"k{number % 7}" for number in range(700)]
    batch = pa.record_batch({"value": [b"%03d" % number for number in range(700)], "key": pa.array(keys)})
    seal = dataclasses.replace(SEAL, is_by_key=True, entry_bytes=1_000)

    entries = encode([batch.slice(0, 400), batch.slice(400)], seal, partitions=2)

    for entry in entries:
        assert len({each.key for each in decode([entry])[entry.topic]}) == 1
    rows = [each for entry in entries for each in decode([entry])[entry.topic]]
    for number in range(1, 7):
        mine = [int(each.value or b"") for each in rows if each.key == b"k%d" % number]
        assert mine == list(range(number, 700, 7))
    assert len(rows) == 700
