"""The bytes of an entry log: a file of blocks, each of add frames sorted by ledger and entry.

Format:    file: header (magic 8 | version u32 | log_id u32 | crc32c u32), blocks; when it is finished also a ledger map
           and a footer (magic u32 | offset of the map u32 | crc32c u32), little-endian
           block: kind u32 | body bytes u32 | frames u32 | crc32c of the body u32 | crc32c u32 of these four, the log's
           id and the block's offset | body
           ENTRIES: add frames as they came. LEDGERS: ledger_id u64, bytes u64 for each ledger, for garbage collection.
Invariant: nothing of a block is used before both checksums were right. The place is part of the header's checksum, so
           a block that was written or read in the wrong place is damage, not an answer.
Failure:   a file is never appended to after a restart, and nothing refers to bytes that were not synced: a torn end is
           ignored.
Limits:    one checksum per 64 KiB costs a flush 6 µs per block; one per entry would cost it 0.3 µs per KiB entry and
           four bytes more in the index. A read takes the whole block, verifies it, and keeps it: usually the next
           reads ask for the entries around this one.
"""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.errors import LogDamagedError
from magnetar.runtime.disk import Buffer
from magnetar.storage.index.extents import BlockPlace

ENTRIES: Final = 0x6B6C4201
LEDGERS: Final = 0x6B6C4202

_MAGIC: Final = b"mgntrlog"
_VERSION: Final = 1
_FOOTER_MAGIC: Final = 0x6B6C42FF
_HEADER = struct.Struct("<8sIII")
_BLOCK = struct.Struct("<IIIII")
_PLACE = struct.Struct("<II")
_U32 = struct.Struct("<I")
_FOOTER = struct.Struct("<III")
_LEDGER = struct.Struct("<QQ")

HEADER_BYTES: Final = _HEADER.size
BLOCK_HEADER_BYTES: Final = _BLOCK.size
FOOTER_BYTES: Final = _FOOTER.size

LOGS: Final = "logs"
"""The directory of log files below each ledger directory."""


def log_path(log_id: int) -> str:
    return f"{LOGS}/{log_id:08x}.log"


def log_id_of(name: str) -> int | None:
    """Returns None if the name is not a log's."""
    stem, dot, kind = name.partition(".")
    is_ours = dot and kind == "log" and len(stem) == 8 and all(digit in "0123456789abcdef" for digit in stem)
    return int(stem, 16) if is_ours else None


class Block(NamedTuple):
    kind: int
    place: BlockPlace
    frames: int
    body: memoryview


def encode_block(kind: int, log_id: int, offset: int, frames: int, body: Buffer) -> bytes:
    """Returns the header; the body follows it directly."""
    fields = _BLOCK.pack(kind, len(body), frames, crc32c(body), 0)[:-4]
    return fields + struct.pack("<I", crc32c(fields, crc32c(_PLACE.pack(log_id, offset))))


def is_block_header(data: bytes, at: int, log_id: int, offset: int) -> bool:
    """Reports whether a valid header begins at `at` in the data, which is `offset` in the file. Cheap, for a search."""
    if len(data) < at + BLOCK_HEADER_BYTES:
        return False
    (checksum,) = _U32.unpack_from(data, at + BLOCK_HEADER_BYTES - 4)
    fields = data[at : at + BLOCK_HEADER_BYTES - 4]
    return bool(checksum == crc32c(fields, crc32c(_PLACE.pack(log_id, offset))))


def body_bytes(header: Buffer, log_id: int, offset: int) -> int:
    """Returns the length of the block after this header, or raises LogDamagedError."""
    if len(header) < BLOCK_HEADER_BYTES:
        raise LogDamagedError(f"{log_path(log_id)}: the block at {offset} is cut off in its header")
    kind, size, _, _, checksum = _BLOCK.unpack_from(header)
    if checksum != crc32c(memoryview(header)[: BLOCK_HEADER_BYTES - 4], crc32c(_PLACE.pack(log_id, offset))):
        raise LogDamagedError(f"{log_path(log_id)}: no valid block begins at {offset}")
    if kind not in (ENTRIES, LEDGERS):
        raise LogDamagedError(f"{log_path(log_id)}: the block at {offset} is of unknown kind {kind:#x}")
    return int(size)


def decode_block(data: Buffer, at: int, log_id: int, offset: int) -> Block:
    """Returns the block that begins at `at` in the data, which is `offset` in the file."""
    view = memoryview(data)[at:]
    end = BLOCK_HEADER_BYTES + body_bytes(view, log_id, offset)
    if len(view) < end:
        raise LogDamagedError(
            f"{log_path(log_id)}: the block at {offset} has {end} bytes and the file ends before that"
        )
    kind, _, frames, checksum, _ = _BLOCK.unpack_from(view)
    body = view[BLOCK_HEADER_BYTES:end]
    if crc32c(body) != checksum:
        raise LogDamagedError(f"{log_path(log_id)}: the block at {offset}, {end} bytes, has a wrong checksum")
    return Block(kind, BlockPlace(log_id, offset, end), frames, body)


def encode_header(log_id: int) -> bytes:
    head = _HEADER.pack(_MAGIC, _VERSION, log_id, 0)[:-4]
    return head + struct.pack("<I", crc32c(head))


def header_version(data: bytes) -> int | None:
    """Returns None if this is not a header of any version."""
    if len(data) < HEADER_BYTES:
        return None
    magic, version, _, checksum = _HEADER.unpack_from(data)
    return version if magic == _MAGIC and checksum == crc32c(data[: HEADER_BYTES - 4]) else None


def check_header(data: bytes, log_id: int) -> None:
    if data[:HEADER_BYTES] == encode_header(log_id):
        return
    version = header_version(data)
    if version not in (None, _VERSION):
        raise LogDamagedError(
            f"{log_path(log_id)} has format version {version}, this program knows {_VERSION}: start a newer one"
        )
    raise LogDamagedError(f"{log_path(log_id)} does not begin with its header: cut off, damaged, or not an entry log")


def encode_ledger_map(sizes: Mapping[int, int]) -> bytes:
    return b"".join([_LEDGER.pack(ledger_id, sizes[ledger_id]) for ledger_id in sorted(sizes)])


def decode_ledger_map(body: Buffer) -> dict[int, int]:
    if len(body) % _LEDGER.size:
        raise LogDamagedError(f"a ledger map of {len(body)} bytes is not a list of ledgers")
    return dict(_LEDGER.iter_unpack(body))


def encode_footer(log_id: int, map_offset: int) -> bytes:
    fields = struct.pack("<II", _FOOTER_MAGIC, map_offset)
    return fields + struct.pack("<I", crc32c(fields, crc32c(_PLACE.pack(log_id, 0))))


def decode_footer(data: bytes, log_id: int) -> int | None:
    """Returns the place of the ledger map, or None if this is not a footer."""
    if len(data) != FOOTER_BYTES:
        return None
    magic, map_offset, checksum = _FOOTER.unpack(data)
    is_footer = magic == _FOOTER_MAGIC and checksum == crc32c(data[:8], crc32c(_PLACE.pack(log_id, 0)))
    return int(map_offset) if is_footer else None


def finish(log_id: int, offset: int, sizes: Mapping[int, int]) -> Sequence[Buffer]:
    """Returns the chunks that end a log, and counts nothing after them."""
    body = encode_ledger_map(sizes)
    return [encode_block(LEDGERS, log_id, offset, 0, body), body, encode_footer(log_id, offset)]
