"""Many places of one buffer read at once: varints, and slices that become one Arrow array.

Why:       a Python step per message costs more than all else. Here one numpy call takes a step for all rows.
Places:    int64 arrays of positions. Reading beyond the buffer gives its last byte instead of an error: whoever
           follows positions compares them with where they must end.
"""

from __future__ import annotations

from typing import Any, Final, TypeAlias

import numpy as np
import numpy.typing as npt
import pyarrow as pa

Bytes: TypeAlias = npt.NDArray[np.uint8]
Ints: TypeAlias = npt.NDArray[np.int64]
Words: TypeAlias = npt.NDArray[np.uint64]
Flags: TypeAlias = npt.NDArray[np.bool_]

VARINT_BYTES_MAX: Final = 10
_BEYOND: Final = 1 << 40
"""Added to a position that cannot be right, so that it is beyond any end."""


def varints(data: Bytes, at: Ints) -> tuple[Words, Ints]:
    """The number at each place, and the place behind it; one of more than ten bytes ends beyond everything."""
    byte = data.take(at, mode="clip")
    values = (byte & 0x7F).astype(np.uint64)
    following = at + 1
    more = byte >= 0x80
    for shift in range(7, 7 * VARINT_BYTES_MAX, 7):
        if not more.any():
            return values, following
        byte = data.take(following, mode="clip")
        if more.all():
            values |= (byte & 0x7F).astype(np.uint64) << np.uint64(shift)
            following += 1
            more = byte >= 0x80
        else:
            values |= np.where(more, byte & 0x7F, 0).astype(np.uint64) << np.uint64(shift)
            following += more
            more &= byte >= 0x80
    return values, following + more * _BEYOND


def fixed(data: Bytes, at: Ints, kind: str) -> npt.NDArray[Any]:
    """Numbers of a fixed size, as numpy names their type, such as `<f8`."""
    width = np.dtype(kind).itemsize
    rows = data.take(at[:, None] + np.arange(width), mode="clip")
    return rows.view(kind).reshape(len(at))


def slices(data: pa.Buffer, start: Ints, end: Ints, missing: Flags | None = None) -> pa.BinaryArray:
    """The bytes from each start to its end, in one copy; null where missing. Slices are in the buffer's order, and do
    not overlap."""
    if missing is not None and missing.any():
        present = ~missing
        places = pa.array(2 * (np.cumsum(present) - 1), mask=missing)
        start, end = start[present], end[present]
    else:
        places = pa.array(np.arange(0, 2 * len(start), 2))
    edges = np.empty(2 * len(start) + 1, np.int32)
    edges[:-1:2] = start
    edges[1::2] = end
    edges[-1] = edges[-2] if len(start) else 0
    # Each slice and each gap behind one is an element; every other one is taken.
    everything = pa.Array.from_buffers(pa.binary(), 2 * len(start), [None, pa.py_buffer(edges), data])
    return everything.take(places)


def dense(data: pa.Buffer, start: Ints, end: Ints, missing: Flags | None = None) -> pa.BinaryArray:
    """As `slices`, of ones that follow one another without gaps: nothing is copied."""
    edges = np.empty(len(start) + 1, np.int32)
    edges[:-1] = start
    edges[-1] = end[-1] if len(end) else 0
    validity = None if missing is None else pa.py_buffer(np.packbits(~missing, bitorder="little"))
    return pa.Array.from_buffers(pa.binary(), len(start), [validity, pa.py_buffer(edges), data])
