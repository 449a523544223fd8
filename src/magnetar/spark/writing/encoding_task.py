"""The encoder of one task, made of the plan; and its entries, as many at a time as are handed over."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

import pyarrow as pa

from magnetar.runtime.system_entropy import SystemEntropy
from magnetar.spark.encoding.avro_values import avro_values
from magnetar.spark.encoding.encoder import EntryEncoder, ValuesOf
from magnetar.spark.encoding.entries import Entry, Numbers, Seal
from magnetar.spark.encoding.json_values import json_values
from magnetar.spark.encoding.layout import read_values
from magnetar.spark.encoding.routing import Resolve, Router
from magnetar.spark.writing.options import ValueSchema
from magnetar.spark.writing.plan import TaskIdentity, WritePlan

_GROUP_BYTES: Final = 16 * 2**20  # Handed to the loop's thread at a time; a record batch may be much larger.
_VALUES: dict[ValueSchema, ValuesOf] = {
    ValueSchema.NONE: read_values,
    ValueSchema.JSON: json_values,
    ValueSchema.AVRO: avro_values,
}


def make_encoder(
    plan: WritePlan,
    task: TaskIdentity,
    producer_name: str,
    message_bytes_max: int,
    resolve: Resolve,
    numbers: Callable[[], Numbers],
) -> EntryEncoder:
    options, target = plan.options, plan.target
    seal = Seal(
        producer_name=producer_name,
        publish_ms=SystemEntropy().wall_ms(),
        compression=options.compression,
        entry_bytes=min(options.entry_bytes, message_bytes_max * 3 // 4),
        message_bytes_max=message_bytes_max,
        is_by_key=options.is_by_key,
    )
    known = {} if target is None else {options.topic: target}
    router = Router(lambda name: known.get(name) or resolve(name), options.topic, task.partition, seal.entry_bytes)
    return EntryEncoder(plan.layout, _VALUES[options.schema], router, seal, numbers)


def encoded(encoder: EntryEncoder, batches: Iterable[pa.RecordBatch]) -> Iterator[list[Entry]]:
    """All entries of a task's rows, in groups that are worth a hand-over and do not fill the memory."""
    for batch in batches:
        yield from _groups(encoder.encode(batch))
    yield from _groups(encoder.finish())


def _groups(entries: Iterable[Entry]) -> Iterator[list[Entry]]:
    group: list[Entry] = []
    size = 0
    for entry in entries:
        group.append(entry)
        size += len(entry.body)
        if size >= _GROUP_BYTES:
            yield group
            group, size = [], 0
    if group:
        yield group
