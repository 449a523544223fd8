"""Whatever producers send: the decoder makes the same of it as one that goes message by message."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from magnetar.spark.decoding.columns import raw_columns
from magnetar.spark.decoding.inputs import DecodeOptions
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD
from tests.rows import every_row
from tests.unit.spark.decoding.stored import EntryFields, Sent, batch, batches, decode, plain, reference, run, single

_CODECS = st.sampled_from([NONE, NONE, NONE, LZ4, ZLIB, ZSTD, SNAPPY])
_TEXTS = st.text(st.characters(codec="utf-8", categories=("L", "N", "Zs")), max_size=8)
_KEYS = st.none() | _TEXTS | st.binary(max_size=8)
_TIMES = st.just(0) | st.integers(1, 2_000_000_000_000)
_MESSAGES = st.builds(
    Sent,
    value=st.none() | st.binary(max_size=300),
    key=_KEYS,
    properties=st.lists(st.tuples(_TEXTS, _TEXTS), max_size=3),
    event_ms=_TIMES,
    sequence_id=st.none() | st.integers(0, 2**63 - 1),
    has_null_key=st.booleans(),
    is_compacted_out=st.booleans(),
    ordering_key=st.binary(max_size=3),
)
_FIELDS = st.builds(
    EntryFields,
    compression=_CODECS,
    index=st.none() | st.integers(100, 2**40),
    publish_ms=st.integers(1, 2_000_000_000_000),
    producer=_TEXTS,
    sequence_id=st.integers(0, 2**63 - 1),
    has_checksum=st.booleans(),
)
_ENTRIES = st.one_of(
    st.builds(batch, st.lists(_MESSAGES, min_size=1, max_size=30), _FIELDS), st.builds(single, _MESSAGES, _FIELDS)
)


@settings(max_examples=15)
@given(st.lists(_ENTRIES, max_size=6), st.integers(1, 20))
def test_any_messages_come_out_as_they_went_in(entries: list[bytes], rows_max: int) -> None:
    made = run(entries)
    assert decode(made, options=DecodeOptions(rows_max=rows_max)) == list(map(_sorted, reference(made)))


def _sorted(row: dict[str, object]) -> dict[str, object]:
    return {name: row[name] for name in raw_columns(include_headers=True).names}


@settings(max_examples=8)
@given(
    count=st.integers(13, 150),
    size=st.integers(0, 300),
    key=st.none() | st.integers(1, 140),
    first=st.sampled_from([0, 100, 126, 127, 128, 16_300, 2**21 - 5, 2**40]),
    names=st.lists(_TEXTS, max_size=2),
    event_ms=_TIMES,
)
def test_batches_of_like_messages_come_out_as_they_went_in(
    count: int, size: int, key: int | None, first: int, names: list[str], event_ms: int
) -> None:
    messages = [
        Sent(
            value=random.Random(number).randbytes(size),
            key=None if key is None else f"{number:0{key}}"[:key],
            properties=[(name, str(number % 10)) for name in names],
            event_ms=event_ms,
            sequence_id=first + number,
        )
        for number in range(count)
    ]
    made = run([batch(messages), batch(messages, EntryFields(compression=LZ4))])
    assert decode(made) == list(map(_sorted, reference(made)))


@every_row("column", raw_columns(include_headers=True).names)
def test_one_column_alone_is_the_same_as_among_all(column: str) -> None:
    messages = [Sent(bytes(n), f"k{n}", [("a", str(n))], n * 1000, n) for n in range(40)]
    made = run([batch(messages), single(Sent(None)), batch(messages[:3])])
    everything = raw_columns(include_headers=True)
    alone = everything.select(pa.schema([everything.arrow.field(column)]))
    assert [row[column] for row in decode(made)] == [row[column] for row in decode(made, columns=alone)]


def test_a_batch_has_no_more_rows_or_bytes_than_it_may() -> None:
    messages = [Sent(b"x" * 100) for _ in range(50)]
    made = run([batch(messages) for _ in range(10)])
    by_rows = batches(made, options=DecodeOptions(rows_max=30))
    assert [len(each) for each in by_rows] == [30, 20] * 10
    by_bytes = batches(made, options=DecodeOptions(bytes_max=12_000))
    assert [len(each) for each in by_bytes] == [150, 150, 150, 50]
    assert [row for each in by_rows for row in plain(each)] == [row for each in by_bytes for row in plain(each)]


def test_a_run_of_memoryviews_is_read_like_one_of_bytes() -> None:
    entries = [batch([Sent(b"a"), Sent(b"b")] * 10), single(Sent(b"c", "k"))]
    around = [memoryview(b"##" + entry + b"##")[2:-2] for entry in entries]
    assert decode(run(entries)) == decode(run(around))  # type: ignore[arg-type]


@pytest.mark.parametrize("key_sizes", [(0, 0), (3, 3), (2, 4)])
def test_messages_of_other_sizes_that_add_up_to_those_of_like_ones_are_told_apart(key_sizes: tuple[int, int]) -> None:
    sizes = [10, *[9, 11] * 12, 10]
    messages = [
        Sent(bytes([number]) * size, "k" * key_sizes[number % 2] or None, sequence_id=5)
        for number, size in enumerate(sizes)
    ]
    made = run([batch(messages)])
    assert decode(made) == list(map(_sorted, reference(made)))
