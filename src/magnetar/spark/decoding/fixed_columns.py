"""The columns that every topic has, made from settled rows: constants of entries are repeated, never made per row."""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import numpy as np
import pyarrow as pa

from magnetar.spark.decoding.arrow_types import TIMESTAMP
from magnetar.spark.decoding.byte_spans import Bytes, Ints
from magnetar.spark.decoding.headers import Settled, keys, null_values, properties, sequence_ids
from magnetar.spark.decoding.row_buffer import Part

_US_PER_MS: Final = 1000
_NUMBERS_KEPT: Final = 2000
_REPEATED_STEP: Final = 4096


def _grid(texts: list[str]) -> Bytes:
    """Returns a row of bytes for each, filled with zeros."""
    padded = np.array([text.encode() for text in texts])
    return padded.view(np.uint8).reshape(len(texts), padded.itemsize)


def _lengths(grid: Bytes) -> Ints:
    lengths: Ints = np.count_nonzero(grid, axis=1)
    return lengths


_NUMBERS: Final = _grid([str(number) for number in range(-1, _NUMBERS_KEPT)])
"""Batch indexes, from -1 on."""


def raw_column(source: str, settled: Settled) -> pa.Array:
    return _MAKERS[source](settled)


def values(settled: Settled) -> pa.BinaryArray:
    return settled.rows.payloads(null_values(settled.headers))


def _topic(settled: Settled) -> pa.Array:
    return _repeated_text(settled, lambda part: part.topic)


def _producer(settled: Settled) -> pa.Array:
    return _repeated_text(settled, lambda part: part.producer)


def _repeated_text(settled: Settled, text: Callable[[Part], str]) -> pa.Array:
    rows = settled.rows
    texts = [text(part) for part in rows.parts]
    if texts.count(texts[0]) == len(texts):
        return _repeated(texts[0], -(-len(rows) // _REPEATED_STEP)).slice(0, len(rows))
    return pa.array(texts, pa.string()).take(pa.array(rows.entry))


@lru_cache(maxsize=64)
def _repeated(text: str, steps: int) -> pa.Array:
    """Is cached, as one batch follows another with the same names."""
    return pa.repeat(pa.scalar(text, pa.string()), steps * _REPEATED_STEP)


def _partition(settled: Settled) -> pa.Array:
    return pa.array(_of_parts(settled, lambda part: part.partition).astype(np.int32))


def _index(settled: Settled) -> pa.Array:
    return pa.array(_of_parts(settled, lambda part: part.first_index) + settled.rows.ordinal)


def _publish_time(settled: Settled) -> pa.Array:
    return pa.array(_of_parts(settled, lambda part: part.publish_ms) * _US_PER_MS).view(TIMESTAMP)


def _event_time(settled: Settled) -> pa.Array:
    times = settled.headers.numbers.get("event_time")
    if times is None:
        return pa.nulls(len(settled.rows), TIMESTAMP)
    return pa.array(times * _US_PER_MS, mask=times == 0).view(TIMESTAMP)


def _sequence_id(settled: Settled) -> pa.Array:
    return pa.array(sequence_ids(settled))


def _redelivery_count(settled: Settled) -> pa.Array:
    return pa.array(np.zeros(len(settled.rows), np.int32))  # Only a subscription redelivers.


def _message_id(settled: Settled) -> pa.Array:
    """Puts both parts of each text side by side in a grid, of which everything but the padding is taken."""
    rows = settled.rows
    batch = _of_parts(settled, lambda part: part.first_batch_index) + rows.ordinal
    entries = _grid([f"{part.ledger_id}:{part.entry_id}:{part.partition}:" for part in rows.parts])
    most = int(batch.max(initial=0))
    numbers = _NUMBERS if most < _NUMBERS_KEPT else _grid([str(number) for number in range(-1, most + 1)])
    grid = np.concatenate((entries.take(rows.entry, axis=0), numbers.take(batch + 1, axis=0)), axis=1)
    lengths = _lengths(entries)[rows.entry] + _lengths(numbers)[batch + 1]
    edges = np.zeros(len(rows) + 1, np.int32)
    np.cumsum(lengths, out=edges[1:])
    return pa.Array.from_buffers(pa.string(), len(rows), [None, pa.py_buffer(edges), pa.py_buffer(grid[grid != 0])])


def _of_parts(settled: Settled, number: Callable[[Part], int]) -> Ints:
    rows = settled.rows
    return np.array([number(part) for part in rows.parts], np.int64)[rows.entry]


_MAKERS: Final[dict[str, Callable[[Settled], Any]]] = {
    "key": keys,
    "value": values,
    "topic": _topic,
    "partition": _partition,
    "message_id": _message_id,
    "index": _index,
    "publish_time": _publish_time,
    "event_time": _event_time,
    "producer": _producer,
    "sequence_id": _sequence_id,
    "properties": properties,
    "redelivery_count": _redelivery_count,
}
