"""EntryEncoder: record batches of one task in, entries out; the order of rows is kept for each destination.

    encoder = EntryEncoder(layout, values, router, seal, numbers)
    for batch in batches: entries += encoder.encode(batch)
    entries += encoder.finish()

Limits:    a batch is encoded a slice at a time, each about `_SLICE_BYTES`; messages that wait for a full entry are
           bounded over all destinations. A row beyond the broker's limit is not batched but cut into chunks
           (entries.py), at its place in the order.
Read next: messages.py, entries.py, routing.py
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.spark.encoding.arrays import BinaryArray, Ints
from magnetar.spark.encoding.entries import Entry, EntryBuilder, Numbers, Seal, chunk_entries
from magnetar.spark.encoding.layout import Layout
from magnetar.spark.encoding.messages import Keys, Messages, encode_messages
from magnetar.spark.encoding.routing import Router

_SLICE_BYTES: Final = 16 * 2**20  # A slice costs half a millisecond whatever its size; Arrow's offsets end at 2 GiB.
_PENDING_BYTES_MAX: Final = 64 * 2**20
_HEADER_BYTES: Final = 16 * 2**10  # Left free below the broker's limit: metadata, and what compression may add.

ValuesOf = Callable[[pa.RecordBatch, Layout], BinaryArray]


class EntryEncoder:
    """One per task attempt. `numbers` makes the sequence ids of a destination."""

    def __init__(
        self, layout: Layout, values_of: ValuesOf, router: Router, seal: Seal, numbers: Callable[[], Numbers]
    ) -> None:
        self._layout = layout
        self._values_of = values_of
        self._router = router
        self._seal = seal
        self._numbers = numbers
        self._builders: dict[int, EntryBuilder] = {}
        self._alone_bytes_max = seal.message_bytes_max - min(_HEADER_BYTES, seal.message_bytes_max // 4)

    def encode(self, batch: pa.RecordBatch) -> Iterator[Entry]:
        """Yields full entries."""
        if not batch.num_rows:
            return
        layout = self._layout
        messages = layout.messages(batch, self._values_of(batch, layout))
        topics = batch.column(layout.topic) if layout.topic else None
        partitions = batch.column(layout.partition) if layout.partition else None
        to = self._router.route(messages, topics, partitions)
        groups = _by_key(to, messages.keys) if self._seal.is_by_key and messages.keys is not None else to
        if (groups != groups[0]).any():
            order = np.argsort(groups, kind="stable")
            messages, to, groups = messages.take(order), to[order], groups[order]
        for start, end in _slices(messages.sizes, self._alone_bytes_max):
            yield from self._encode_slice(messages.slice(start, end - start), to[start:end], groups[start:end])
        if sum(builder.pending_bytes for builder in self._builders.values()) > _PENDING_BYTES_MAX:
            yield from self.finish()

    def finish(self) -> Iterator[Entry]:
        """Yields the entries that are not full."""
        for builder in self._builders.values():
            yield from builder.flush()

    def _encode_slice(self, messages: Messages, to: Ints, groups: Ints) -> Iterator[Entry]:
        if messages.sizes[0] > self._alone_bytes_max:  # Such a message is the only one.
            yield from self._encode_large(messages, int(to[0]))
            return
        encoded = encode_messages(messages)
        for start, end in _runs(groups):
            builder = self._builder(int(to[start]))
            yield from builder.add(encoded, start, end, messages)
            if self._seal.is_by_key:
                yield from builder.flush()

    def _encode_large(self, messages: Messages, destination: int) -> Iterator[Entry]:
        builder = self._builder(destination)
        yield from builder.flush()
        yield from chunk_entries(builder.topic, self._seal, builder.schema_version, builder.numbers, messages, 0)

    def _builder(self, destination: int) -> EntryBuilder:
        found = self._builders.get(destination)
        if found is None:
            topic = self._router.destinations[destination]
            version = self._router.target_of(destination).schema_version
            found = self._builders[destination] = EntryBuilder(topic, self._seal, version, self._numbers())
        return found


def _by_key(to: Ints, keys: Keys) -> Ints:
    """Returns a number for every destination and key; rows without a key are one more."""
    encoded = keys.text.dictionary_encode()
    codes: Ints = encoded.indices.fill_null(len(encoded.dictionary)).to_numpy().astype(np.int64)
    return to * (len(encoded.dictionary) + 1) + codes


def _runs(values: Ints) -> Iterator[tuple[int, int]]:
    """Yields runs of equal values."""
    cuts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = [0, *cuts.tolist(), len(values)]
    yield from pairwise(edges)


def _slices(sizes: Ints, alone_bytes_max: int) -> Iterator[tuple[int, int]]:
    """Yields rows to encode at once: about this many bytes; a row that is too large is alone."""
    slice_of = (np.cumsum(sizes) - sizes) // _SLICE_BYTES
    large = sizes > alone_bytes_max
    if large.any():
        slice_of += np.cumsum(large) + np.concatenate(([0], np.cumsum(large)[:-1]))  # Differs on both its sides.
    yield from _runs(slice_of)
