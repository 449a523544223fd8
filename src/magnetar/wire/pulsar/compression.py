"""Payloads in and out of the compressions that producers use, for whoever must look inside a message.

Brokers pass payloads on as they are; compaction, schemas' tools, `magnetar read` and our own client open them.
Formats:   LZ4 and SNAPPY are bare blocks without any header, ZLIB and ZSTD have their own. The size that comes out is
           in the message's metadata: nothing is decompressed beyond it, so a small payload cannot take much memory.
Libraries: ZLIB is Python's. The other three come from `cramjam`, imported when first needed.
"""

from __future__ import annotations

import zlib
from collections.abc import Callable
from importlib import import_module
from types import ModuleType

from magnetar.errors import MalformedEntryError, MissingDependencyError
from magnetar.wire.pulsar.frames import Buffer
from magnetar.wire.pulsar.limits import MESSAGE_BYTES_MAX
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import LZ4, NONE, SNAPPY, ZLIB, ZSTD

_NAMES: dict[int, str] = {LZ4: "LZ4", SNAPPY: "Snappy", ZSTD: "Zstandard"}


def decompress(kind: int, data: Buffer, size: int, size_max: int = MESSAGE_BYTES_MAX) -> bytes:
    """`data` with exactly `size` bytes. `kind` is a `CompressionType`; NONE gives a copy."""
    if kind == NONE:
        return bytes(data)
    if size > size_max:
        raise MalformedEntryError(f"a payload of {size} bytes when decompressed exceeds the limit of {size_max}")
    out = _inflate(data, size) if kind == ZLIB else _decompress_by_library(kind, data, size)
    if len(out) != size:
        raise MalformedEntryError(f"a compressed payload has {len(out)} bytes where its metadata says {size}")
    return out


def compress(kind: int, data: Buffer) -> bytes:
    """The caller puts `kind` and the size of `data` into the metadata."""
    if kind == NONE:
        return bytes(data)
    if kind == ZLIB:
        return zlib.compress(data)
    library = _library(kind)
    if kind == LZ4:
        return bytes(library.lz4.compress_block(data, store_size=False))
    return bytes(library.snappy.compress_raw(data) if kind == SNAPPY else library.zstd.compress(data))


def _inflate(data: Buffer, size: int) -> bytes:
    inflater = zlib.decompressobj()
    try:
        out = inflater.decompress(data, size + 1)  # One more than may come, so that too much is noticed; 0 is no limit.
    except zlib.error as error:
        raise MalformedEntryError(f"a ZLIB payload does not decompress: {error}") from None
    return out


def _decompress_by_library(kind: int, data: Buffer, size: int) -> bytes:
    library = _library(kind)
    into_by_kind: dict[int, Callable[[bytes, bytearray], int]] = {
        LZ4: library.lz4.decompress_block_into,
        SNAPPY: library.snappy.decompress_raw_into,
        ZSTD: library.zstd.decompress_into,
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
