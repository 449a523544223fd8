"""A task's rows become groups of entries, as the plan says."""

from __future__ import annotations

import pyarrow as pa
import pytest

from magnetar.spark.encoding.encoder import TaskNumbers
from magnetar.spark.encoding.routing import Target
from magnetar.spark.writing import tasks
from magnetar.spark.writing.plan import TaskIdentity, parse_write_options, plan_write
from magnetar.spark.writing.tasks import encoded, make_encoder
from magnetar.wire.pulsar.entry import parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import ZLIB
from tests.unit.spark.encoding.decoded import decode

TASK = TaskIdentity("spark/q", 2, 3, 0, 17)
BATCH = pa.record_batch({"value": [b"%04d" % number * 25 for number in range(2_000)], "topic": ["a", "b"] * 1_000})


def test_rows_are_handed_over_in_groups_of_bounded_size(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_GROUP_BYTES", 20_000)
    plan = plan_write(BATCH.schema, parse_write_options({"batchingMaxBytes": "5000", "compression": "zlib"}))
    asked: list[str] = []

    def resolve(name: str) -> Target:
        asked.append(name)
        return Target(f"persistent://public/default/{name}", 0, b"version.")

    numbers = TaskNumbers(TASK.epoch, TASK.partition)
    encoder = make_encoder(plan, TASK, TASK.owner, 5 * 2**20, resolve, lambda: numbers)

    groups = list(encoded(encoder, [BATCH.slice(0, 1_500), BATCH.slice(1_500)]))

    assert asked == ["a", "b"]
    assert all(sum(len(entry.body) for entry in group) < 26_000 for group in groups)
    entries = [entry for group in groups for entry in group]
    found = decode(entries)
    assert [each.value for each in found["persistent://public/default/b"]] == BATCH.column("value").to_pylist()[1::2]
    metadata = parse_entry(entries[0].body).metadata
    assert (metadata.producer_name, metadata.compression, metadata.schema_version) == ("spark/q", ZLIB, b"version.")


def test_entries_stay_below_a_broker_that_takes_little() -> None:
    plan = plan_write(BATCH.schema, parse_write_options({"topic": "a"}))
    numbers = TaskNumbers(0, 0)
    encoder = make_encoder(plan, TASK, TASK.owner, 20_000, lambda name: Target(name), lambda: numbers)

    assert max(len(entry.body) for group in encoded(encoder, [BATCH]) for entry in group) <= 20_000
