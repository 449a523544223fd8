"""Compresses and decompresses payloads as producers do, for callers that must look inside a message.

Brokers pass payloads on as they are; compaction, schemas' tools, `magnetar read` and our own client open them.

Format:    LZ4 and SNAPPY are bare blocks without any header, ZLIB and ZSTD have their own. ZLIB is Python's; the other
           three come from `cramjam`, imported when first needed.
Limits:    the size of the result is in the message's metadata: nothing is decompressed beyond it, so a small payload
           cannot take much memory.
"""

from __future__ import annotations

import enum
import zlib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType
from typing import Final, TypeAlias

from magnetar.errors import MalformedEntryError, MissingDependencyError

Buffer: TypeAlias = bytes | bytearray | memoryview

PAYLOAD_BYTES_MAX: Final = 5 * 2**20
"""The default limit of the result: the largest message by default."""


class Compression(enum.IntEnum):
    """The compressions, with the numbers of Pulsar's metadata."""

    NONE = 0
    LZ4 = 1
    ZLIB = 2
    ZSTD = 3
    SNAPPY = 4


_NAMES: dict[int, str] = {Compression.LZ4: "LZ4", Compression.SNAPPY: "Snappy", Compression.ZSTD: "Zstandard"}


def decompress(kind: int, data: Buffer, size: int, size_max: int = PAYLOAD_BYTES_MAX) -> bytes:
    """Returns exactly `size` bytes. `kind` is a `Compression`; NONE gives a copy."""
    if kind == Compression.NONE:
        return bytes(data)
    if size > size_max:
        raise MalformedEntryError(f"a payload of {size} bytes when decompressed exceeds the limit of {size_max}")
    out = _inflate(data, size) if kind == Compression.ZLIB else _decompress_by_library(kind, data, size)
    if len(out) != size:
        raise MalformedEntryError(f"a compressed payload has {len(out)} bytes where its metadata says {size}")
    return out


def compress(kind: int, data: Buffer) -> bytes:
    """Compresses; the caller puts `kind` and the size of `data` into the metadata."""
    if kind == Compression.NONE:
        return bytes(data)
    if kind == Compression.ZLIB:
        return zlib.compress(data)
    library = _library(kind)
    if kind == Compression.LZ4:
        return bytes(library.lz4.compress_block(data, store_size=False))
    return bytes(library.snappy.compress_raw(data) if kind == Compression.SNAPPY else library.zstd.compress(data))


def _inflate(data: Buffer, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data, size + 1)  # One more than allowed, so that too much is noticed; 0 is no limit.
    except zlib.error as error:
        raise MalformedEntryError(f"a ZLIB payload does not decompress: {error}") from None
    return out


def _decompress_by_library(kind: int, data: Buffer, size: int) -> bytes:
    library = _library(kind)
    into_by_kind: dict[int, Callable[[bytes, bytearray], int]] = {
        Compression.LZ4: library.lz4.decompress_block_into,
        Compression.SNAPPY: library.snappy.decompress_raw_into,
        Compression.ZSTD: library.zstd.decompress_into,
    }
    out = bytearray(size)
    try:
        written = into_by_kind[kind](bytes(data), out)
    except library.DecompressionError as error:
        raise MalformedEntryError(f"a {_NAMES[kind]} payload does not decompress: {error}") from None
    return bytes(memoryview(out)[:written])


def _library(kind: int) -> ModuleType:
    name = _NAMES.get(kind)
    if name is None:
        raise MalformedEntryError(f"a payload has an unknown compression, number {kind}")
    try:
        return import_module("cramjam")
    except ImportError:
        message = f"{name} needs the package cramjam: pip install 'magnetar[compression]'"
        raise MissingDependencyError(message) from None
