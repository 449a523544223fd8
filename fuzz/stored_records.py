"""The decoders of a bookie's own files but the journal's. What a checksum protects is also tried as if it were right.

Read next: journal_files.py
"""

from __future__ import annotations

import struct
from collections.abc import Callable

from crc32c import crc32c

from fuzz.engine import Target
from magnetar.bookie.read_only import Status, decode_status, encode_status
from magnetar.errors import IndexDamagedError, LogDamagedError
from magnetar.storage.entry_log.format import (
    BLOCK_HEADER_BYTES,
    ENTRIES,
    LEDGERS,
    check_header,
    decode_block,
    decode_footer,
    decode_ledger_map,
    encode_block,
    encode_footer,
    encode_header,
    encode_ledger_map,
)
from magnetar.storage.frames import add_frame, by_ledger, scan_frames
from magnetar.storage.index import extents
from magnetar.storage.index.extents import BlockPlace, Extent
from magnetar.storage.journal.mark import ONLY, Marks, decode_marks, encode_marks
from magnetar.storage.ledger_flags import LedgerFlags, decode_flags, encode_flags

_KEY = b"k" * 20
_LEDGER_ID, _LOG_ID, _OFFSET = 5, 9, 4096
_CHECKSUM = 4
_FLAGS = (
    LedgerFlags(master_key=_KEY, fenced=True, explicit_lac=b"a sealed lac, say"),
    LedgerFlags(fenced=True, limbo=True),
    LedgerFlags(master_key=_KEY, fenced=True, deleted_at_ms=1_700_000_000_000),
)
_MARKS = (
    Marks({ONLY: 12_345}),
    Marks({"/disk1/journal": 12_345, "/disk2/journal": 0}),
    Marks({"/disk1/journal": 5}, {"/old": 2**64 - 1, "/older": 7}),
)
_EXTENTS = (
    Extent(_LEDGER_ID, range(100, 164), BlockPlace(_LOG_ID, _OFFSET, 65_536)),
    Extent(_LEDGER_ID, (3, 5, 8, 1000), BlockPlace(_LOG_ID, 0, 300)),
)


def targets() -> list[Target]:
    return [*_index_targets(), *_log_targets()]


class TornError(Exception):
    """A decoder said None, which is its way to refuse."""


def found(value: object) -> object:
    if value is None:
        raise TornError
    return value


def resealed(decode: Callable[[bytes], object], seal: Callable[[bytes], bytes]) -> Callable[[bytes], object]:
    """As if the checksum at the end had been made for what stands before it now."""
    return lambda data: decode(data[:-_CHECKSUM] + seal(data[:-_CHECKSUM]))


# --- index, mark, status ----------------------------------------------------------------------------------------------


def _index_targets() -> list[Target]:
    flags = [encode_flags(_LEDGER_ID, one) for one in _FLAGS]
    marks = [encode_marks(one) for one in _MARKS]
    places = [b"".join(extents.encode(one)) for one in _EXTENTS]
    statuses = [Status(True, 1_700_000_000_000, True), Status(False, 0, False)]
    index_errors = (IndexDamagedError,)
    return [
        Target("journal-mark", marks, _marks, (TornError,)),
        Target("journal-mark-sealed", marks, resealed(_marks, _big), (TornError,)),
        Target("ledger-flags", flags, _flags, index_errors),
        Target("ledger-flags-sealed", flags, resealed(_flags, _flags_seal), index_errors),
        Target("extent", places, _extent, index_errors),
        Target("extent-sealed", places, resealed(_extent, _little), index_errors),
        Target("read-only-status", [encode_status(one) for one in statuses], _status, (TornError,)),
    ]


def _marks(data: bytes) -> object:
    marks = decode_marks(data)
    found(marks)
    assert marks is not None
    if len(marks.in_use) + len(marks.retired) > 1:
        again = decode_marks(encode_marks(marks))
        assert again == marks, "other marks after a round"
    return marks


def _flags(data: bytes) -> object:
    flags = decode_flags(_LEDGER_ID, data)
    assert decode_flags(_LEDGER_ID, encode_flags(_LEDGER_ID, flags)) == flags, "other flags after a round"
    return flags


def _extent(data: bytes) -> object:
    extent = extents.decode(data[: extents.KEY.size], data[extents.KEY.size :])
    assert extent.ids, "an extent of nothing"
    extent.holds(extent.ids[0] + 1)
    return extent


def _status(data: bytes) -> object:
    status = decode_status(data)
    found(status)
    assert status is not None
    assert decode_status(encode_status(status)) == status, "another status after a round"
    return status


def _big(body: bytes) -> bytes:
    return struct.pack(">I", crc32c(body))


def _little(body: bytes) -> bytes:
    return struct.pack("<I", crc32c(body))


def _flags_seal(body: bytes) -> bytes:
    return struct.pack("<I", crc32c(body, crc32c(struct.pack(">Q", _LEDGER_ID))))


# --- entry logs -------------------------------------------------------------------------------------------------------


def _log_targets() -> list[Target]:
    frames = b"".join(
        add_frame(_KEY, struct.pack(">qqqq", 7 + n // 2, n, n - 1, 0) + b"digest, payload") for n in range(4)
    )
    ledgers = encode_ledger_map({5: 1_000, 7: 2**40})
    blocks = [_block(ENTRIES, frames), _block(LEDGERS, ledgers)]
    damaged = (LogDamagedError,)
    return [
        Target("entry-log-header", [encode_header(_LOG_ID)], _header, damaged),
        Target("entry-log-header-sealed", [encode_header(_LOG_ID)], resealed(_header, _little), damaged),
        Target("entry-log-footer", [encode_footer(_LOG_ID, _OFFSET)], _footer, (TornError,)),
        Target("entry-log-block", blocks, _read_block, damaged),
        Target("entry-log-block-sealed", blocks, _sealed_block, damaged),
        Target("stored-frames", [frames], _frames, damaged),
    ]


def _block(kind: int, body: bytes) -> bytes:
    return encode_block(kind, _LOG_ID, _OFFSET, 4, body) + body


def _header(data: bytes) -> object:
    check_header(data, _LOG_ID)
    return data


def _footer(data: bytes) -> object:
    return found(decode_footer(data, _LOG_ID))


def _read_block(data: bytes) -> object:
    block = decode_block(data, 0, _LOG_ID, _OFFSET)
    assert block.place.size <= len(data), "a block that is longer than the file"
    return decode_ledger_map(block.body) if block.kind == LEDGERS else _frames(bytes(block.body))


def _sealed_block(data: bytes) -> object:
    body = data[BLOCK_HEADER_BYTES:]
    kind, _, frames = struct.unpack_from("<III", data.ljust(12, b"\0"))
    return _read_block(encode_block(kind, _LOG_ID, _OFFSET, frames, body) + body)


def _frames(data: bytes) -> object:
    run = scan_frames(data, "fuzz")
    stretches = by_ledger(run)
    assert sum(end - first for _, first, end in stretches) == len(run.entry_ids), "an entry of no ledger"
    return stretches
