"""Compresses and decompresses the records of a batch. Kafka's containers are not Pulsar's (wire/compression.py).

Format:    GZIP has gzip's header, LZ4 is a frame, ZSTD a frame. SNAPPY is raw, or in Java's container: a magic of eight
           bytes, two versions of four, then blocks of size i32 and raw Snappy.
Limits:    Nothing is decompressed beyond `bytes_max`, whatever the data claims.
Failure:   CORRUPT_MESSAGE for what cannot be decompressed, UNSUPPORTED_COMPRESSION_TYPE without the package.
"""

from __future__ import annotations

import enum
import zlib
from importlib import import_module
from types import ModuleType
from typing import Final, TypeAlias

from magnetar.errors import KafkaRefusedError
from magnetar.wire.kafka.error_codes import ErrorCode

Buffer: TypeAlias = bytes | bytearray | memoryview

_GZIP_WINDOW: Final = 31  # zlib's number for gzip's header and the largest window.
_XERIAL_MAGIC: Final = b"\x82SNAPPY\x00"
_XERIAL_HEAD_BYTES: Final = 16
_SIZE_BYTES: Final = 4
_CHUNK: Final = 64 * 1024


class Codec(enum.IntEnum):
    NONE = 0
    GZIP = 1
    SNAPPY = 2
    LZ4 = 3
    ZSTD = 4


CODEC_MAX: Final = max(Codec)


def decompress(codec: int, data: Buffer, bytes_max: int) -> bytes:
    if codec == Codec.GZIP:
        return _gunzip(data, bytes_max)
    if codec not in (Codec.SNAPPY, Codec.LZ4, Codec.ZSTD):
        raise KafkaRefusedError(ErrorCode.UNSUPPORTED_COMPRESSION_TYPE, f"compression {codec} is not known")
    library = _library(codec)
    try:
        if codec == Codec.SNAPPY:
            return _unsnap(library, bytes(data), bytes_max)
        return _stream(library, codec, bytes(data), bytes_max)
    except library.DecompressionError as error:
        raise _damaged(codec, str(error)) from None


def compress(codec: Codec, data: Buffer) -> bytes:
    if codec == Codec.NONE:
        return bytes(data)
    if codec == Codec.GZIP:
        packer = zlib.compressobj(wbits=_GZIP_WINDOW)
        return packer.compress(data) + packer.flush()
    library = _library(codec)
    if codec == Codec.SNAPPY:
        return bytes(library.snappy.compress_raw(data))
    return bytes((library.lz4 if codec == Codec.LZ4 else library.zstd).compress(data))


def _gunzip(data: Buffer, bytes_max: int) -> bytes:
    inflater = zlib.decompressobj(wbits=_GZIP_WINDOW)
    try:
        out = inflater.decompress(data, bytes_max + 1)
    except zlib.error as error:
        raise _damaged(Codec.GZIP, str(error)) from None
    if len(out) > bytes_max:
        raise _too_large(bytes_max)
    if not inflater.eof:
        raise _damaged(Codec.GZIP, "it ends too early")
    return out


def _unsnap(library: ModuleType, data: bytes, bytes_max: int) -> bytes:
    if not data.startswith(_XERIAL_MAGIC):
        return _unsnap_block(library, data, bytes_max)
    parts, left, at = [], bytes_max, _XERIAL_HEAD_BYTES
    while at < len(data):
        start = at + _SIZE_BYTES
        end = start + int.from_bytes(data[at:start], "big")
        if start > len(data) or end > len(data) or end == start:
            raise _damaged(Codec.SNAPPY, f"a block ends at byte {end} of {len(data)}")
        parts.append(_unsnap_block(library, data[start:end], left))
        left -= len(parts[-1])
        at = end
    return b"".join(parts)


def _unsnap_block(library: ModuleType, data: bytes, bytes_max: int) -> bytes:
    size = int(library.snappy.decompress_raw_len(data))
    if size > bytes_max:
        raise _too_large(bytes_max)
    return bytes(library.snappy.decompress_raw(data))


def _stream(library: ModuleType, codec: int, data: bytes, bytes_max: int) -> bytes:
    """Decompresses into a buffer that grows up to the limit: the size in a frame is optional, and may lie."""
    unpack = (library.lz4 if codec == Codec.LZ4 else library.zstd).decompress_into
    size = min(bytes_max, max(_CHUNK, 4 * len(data)))
    while True:
        out = bytearray(size)
        try:
            written = int(unpack(data, out))
        except library.DecompressionError as error:  # It is damaged, or the buffer is too small.
            if size >= bytes_max:
                raise _damaged(codec, f"{error}, with room for {bytes_max} bytes") from None
            size = min(bytes_max, 8 * size)
        else:
            return bytes(memoryview(out)[:written])


def _too_large(bytes_max: int) -> KafkaRefusedError:
    return KafkaRefusedError(
        ErrorCode.MESSAGE_TOO_LARGE, f"a batch has more than {bytes_max} bytes when it is decompressed"
    )


def _damaged(codec: int, why: str) -> KafkaRefusedError:
    return KafkaRefusedError(
        ErrorCode.CORRUPT_MESSAGE, f"{Codec(codec).name.lower()} data that does not decompress: {why}"
    )


def _library(codec: int) -> ModuleType:
    try:
        return import_module("cramjam")
    except ImportError:
        raise KafkaRefusedError(
            ErrorCode.UNSUPPORTED_COMPRESSION_TYPE,
            f"{Codec(codec).name.lower()} needs the package cramjam: pip install 'magnetar[compression]'",
        ) from None
