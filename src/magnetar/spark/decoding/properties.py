"""The properties of many messages as one Arrow array of maps.

A name that stands there twice counts once, with its last value, as in Pulsar's Java client. Bytes that are not UTF-8
become replacement characters: Spark's strings must be.
"""

from __future__ import annotations

from itertools import pairwise
from typing import Final

import numpy as np
import pyarrow as pa

from magnetar.spark.decoding.arrow_types import PROPERTIES_TYPE
from magnetar.spark.decoding.fields import SPAN, ParsedFields, Table, parse_fields
from magnetar.spark.decoding.headers import Settled
from magnetar.spark.decoding.spans import Flags, Ints, slices
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import KeyValue
from magnetar.wire.pulsar.text import text_of

_COMPARED_MAX: Final = 100
_TABLE: Final[Table] = {0x0A: ("name", SPAN), 0x12: ("text", SPAN)}


def properties(settled: Settled) -> pa.MapArray:
    found = settled.headers.repeated.get("properties", [])
    rows = len(settled.rows)
    owner, start, end = _in_order(found, rows)
    offsets = np.zeros(rows + 1, np.int32)
    np.cumsum(np.bincount(owner, minlength=rows), out=offsets[1:])
    names, texts = _pairs(settled, start, end)
    if _has_repeated(owner, names):
        return _deduplicated(offsets.tolist(), names, texts)
    return pa.MapArray.from_arrays(pa.array(offsets), names, texts, type=PROPERTIES_TYPE)


def _in_order(found: list[tuple[Ints, Ints, Ints]], rows: int) -> tuple[Ints, Ints, Ints]:
    """Row, start and end of each, by row; within a row in the order of the occurrences."""
    if not found:
        nothing = np.zeros(0, np.int64)
        return nothing, nothing, nothing
    if all(len(owner) == rows for owner, _, _ in found):  # Each row has as many: no sorting.
        owner, start, end = (np.stack([each[part] for each in found], axis=1).ravel() for part in range(3))
        return owner, start, end
    owner, start, end = (np.concatenate([each[part] for each in found]) for part in range(3))
    order = np.argsort(owner, kind="stable")
    return owner[order], start[order], end[order]


def _pairs(settled: Settled, start: Ints, end: Ints) -> tuple[pa.StringArray, pa.StringArray]:
    pairs = parse_fields(settled.rows.headers.data, start, end, _TABLE)
    if pairs.odd or not all(_all(pairs, name) for name in ("name", "text")):
        return _parsed_slowly(settled, start, end)
    buffer = settled.rows.header_buffer
    return _strings(slices(buffer, *pairs.spans["name"])), _strings(slices(buffer, *pairs.spans["text"]))


def _all(pairs: ParsedFields, name: str) -> bool:
    flags: Flags | None = pairs.present.get(name)
    return flags is not None and bool(flags.all())


def _parsed_slowly(settled: Settled, start: Ints, end: Ints) -> tuple[pa.StringArray, pa.StringArray]:
    data = settled.rows.headers.data
    pairs = [KeyValue.FromString(data[a:b].tobytes()) for a, b in zip(start.tolist(), end.tolist(), strict=True)]
    names, texts = [text_of(pair.key) for pair in pairs], [text_of(pair.value) for pair in pairs]
    return pa.array(names, pa.string()), pa.array(texts, pa.string())


def _strings(found: pa.BinaryArray) -> pa.StringArray:
    try:
        return found.cast(pa.string())
    except pa.ArrowInvalid:
        return pa.array([each.decode(errors="replace") for each in found.to_pylist()], pa.string())


def _has_repeated(owner: Ints, names: pa.StringArray) -> bool:
    """Whether a row has a name twice: each is compared with those that stand one, two, … places before it."""
    codes = None
    for distance in range(1, min(len(owner), _COMPARED_MAX)):
        is_same_row = owner[distance:] == owner[:-distance]
        if not is_same_row.any():
            return False
        if codes is None:
            codes = names.dictionary_encode().indices.to_numpy()
        if (is_same_row & (codes[distance:] == codes[:-distance])).any():
            return True
    return len(owner) >= _COMPARED_MAX  # Some row has very many: that is found out one by one.


def _deduplicated(offsets: list[int], names: pa.StringArray, texts: pa.StringArray) -> pa.MapArray:
    pairs = list(zip(names.to_pylist(), texts.to_pylist(), strict=True))
    maps = [list(dict(pairs[a:b]).items()) for a, b in pairwise(offsets)]
    return pa.array(maps, PROPERTIES_TYPE)
