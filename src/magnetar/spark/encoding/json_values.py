"""Writes rows of typed columns as JSON objects, a column at a time, as Pulsar's JSON schema has them.

Format:    dates are days, timestamps microseconds since 1970, as their logical types in the schema say. Bytes are
           base64, as in Java's JSON. Floats that are not numbers in JSON are strings: "NaN", "Infinity". Null is null.
"""

from __future__ import annotations

import base64
import json

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
from pyarrow import types

from magnetar.spark.encoding.arrays import (
    BinaryArray,
    as_binary,
    data_of,
    flags,
    group,
    is_null,
    items_of,
    join,
    offsets_of,
    pairs_of,
    repeated,
    where,
    without_nulls,
)
from magnetar.spark.encoding.layout import Layout

_CONTROL = [chr(code) for code in range(0x20)]
_NO_NUMBERS = {"nan": '"NaN"', "-nan": '"NaN"', "inf": '"Infinity"', "-inf": '"-Infinity"'}


def json_values(batch: pa.RecordBatch, layout: Layout) -> BinaryArray:
    return _object([(field.name, batch.column(field.name)) for field in layout.fields], batch.num_rows)


def _object(members: list[tuple[str, pa.Array]], rows: int) -> BinaryArray:
    parts: list[BinaryArray] = []
    for number, (name, column) in enumerate(members):
        opening = "," if number else "{"
        parts += [repeated(f"{opening}{json.dumps(name, ensure_ascii=False)}:".encode(), rows), _encode(column)]
    return join(*parts, repeated(b"}" if parts else b"{}", rows))


def _encode(column: pa.Array) -> BinaryArray:
    body = _body(column)
    if not column.null_count:
        return body
    missing = is_null(column)
    return join(where(body, ~missing), flags(missing, b"null"))


def _body(column: pa.Array) -> BinaryArray:
    """Encodes values; a null may become any text."""
    kind = column.type
    if types.is_string(kind) or types.is_large_string(kind):
        return _quoted(column)
    if types.is_binary(kind) or types.is_large_binary(kind):
        encoded = [None if each is None else base64.b64encode(each) for each in column.to_pylist()]
        return _between(b'"', pa.array(encoded, pa.binary()), b'"')
    if types.is_struct(kind):
        names = [kind.field(at).name for at in range(kind.num_fields)]
        return _object(list(zip(names, column.flatten(), strict=True)), len(column))
    if types.is_list(kind):
        items, offsets = items_of(column)
        return _between(b"[", _separated(_encode(items), offsets), b"]")
    if types.is_map(kind):
        keys, values, offsets = pairs_of(column)
        pairs = join(_quoted(keys), repeated(b":", len(keys)), _encode(values))
        return _between(b"{", _separated(pairs, offsets), b"}")
    return _number(column, kind)


def _number(column: pa.Array, kind: pa.DataType) -> BinaryArray:
    if types.is_date32(kind):
        column = column.cast(pa.int32())
    elif types.is_timestamp(kind):
        column = column.cast(pa.timestamp("us", kind.tz)).cast(pa.int64())
    text = column.cast(pa.string())
    if types.is_floating(kind) and not pc.all(pc.is_finite(column).fill_null(True)).as_py():
        texts = [None if each is None else _NO_NUMBERS.get(each, each) for each in text.to_pylist()]
        text = pa.array(texts, pa.string())
    return without_nulls(as_binary(text))


def _between(opening: bytes, content: BinaryArray, closing: bytes) -> BinaryArray:
    return join(repeated(opening, len(content)), without_nulls(content), repeated(closing, len(content)))


def _separated(items: BinaryArray, offsets: npt.NDArray[np.int64]) -> BinaryArray:
    """Joins each row's items with commas between them."""
    follows = np.ones(len(items), np.bool_)
    follows[offsets[:-1][np.diff(offsets) > 0]] = False
    return group(join(flags(follows, b","), items), offsets)


def _quoted(column: pa.Array) -> BinaryArray:
    text = column.fill_null("") if column.null_count else column
    raw = as_binary(text)
    offsets = offsets_of(raw)
    used = np.frombuffer(data_of(raw), np.uint8)[offsets[0] : offsets[-1]]
    for special, escaped in (("\\", "\\\\"), ('"', '\\"')):
        if (used == ord(special)).any():
            text = pc.replace_substring(text, special, escaped)
    if (used < len(_CONTROL)).any():
        for special in _CONTROL:
            text = pc.replace_substring(text, special, json.dumps(special)[1:-1])
    return _between(b'"', as_binary(text), b'"')
