"""Runs of v2 adds and reads, and their answers, over one buffer: all work per entry on the hottest path.

Format:    see v2.py. A context is the first 32 bytes after an add's length: its word,
           master key and ledger id. They are equal for all adds that one writer sends to one ledger, so one comparison
           of bytes shows whether anything but the entry changed, and a dict from context to ledger replaces look-up
           and key check once a context has passed them.
Limits:    one loop over one received region with `unpack_from` and local names; parallel lists come out, no object per
           entry. A run ends at the first frame that is of another kind, incomplete, or to be refused: the caller gives
           that one to `RequestDecoder.decode` or `decode_response`, which know every case, and continues after it. So
           a scan never raises.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Iterable, Sequence
from typing import Final, NamedTuple, TypeAlias

from crc32c import crc32c

from magnetar.errors import LocalProtocolError
from magnetar.wire.bookkeeper.digests import METADATA, Crc32cDigest, EntryDigest
from magnetar.wire.bookkeeper.frames import (
    FRAME_BYTES_MAX,
    MASTER_KEY_BYTES,
    PREFIX_BYTES,
    VERSION_MAX,
    WORD,
    Buffer,
    Flag,
    Operation,
    PacketHeader,
    check_outgoing,
)
from magnetar.wire.bookkeeper.messages import ENTRY_BYTES_MIN
from magnetar.wire.bookkeeper.v2 import HEADER, HEADER_BODY_BYTES

_CONTEXT = struct.Struct(">I20sq")
_ADD = struct.Struct(">I32sqq")  # length | context | entry_id | LAC
_ADD_HEAD_BYTES: Final = WORD.size + MASTER_KEY_BYTES  # Between the length and the entry.
ENTRY_OFFSET: Final = PREFIX_BYTES + _ADD_HEAD_BYTES
"""The offset of the entry in the frame of an add."""
_ADD_SIZE_MIN: Final = _ADD_HEAD_BYTES + ENTRY_BYTES_MIN
_ADD_FIRST: Final = bytes((VERSION_MAX, Operation.ADD))  # Contexts of adds lie between these two in order.
_ADD_END: Final = bytes((VERSION_MAX, Operation.ADD + 1))
_LEDGER_SIGN_AT: Final = _ADD_HEAD_BYTES  # In a context: the byte with the ledger id's sign bit.

_READ = struct.Struct(">IIqq")
_READ_SIZE: Final = _READ.size - PREFIX_BYTES
_PLAIN_READ_WORD: Final = PacketHeader(VERSION_MAX, Operation.READ, 0).word()
_FENCING_READ = struct.Struct(f">IIqq{MASTER_KEY_BYTES}s")
_FENCING_READ_SIZE: Final = _FENCING_READ.size - PREFIX_BYTES
_FENCING_READ_WORD: Final = PacketHeader(VERSION_MAX, Operation.READ, Flag.DO_FENCING | Flag.HIGH_PRIORITY).word()

_ADD_RESPONSE_WORD: Final = PacketHeader(VERSION_MAX, Operation.ADD, 0).word()
_READ_RESPONSE_WORD: Final = PacketHeader(VERSION_MAX, Operation.READ, 0).word()
_ENTRY_ID_BYTES: Final = 8
_ANSWER_CONTEXT_BYTES: Final = HEADER.size - _ENTRY_ID_BYTES
_ANSWER = struct.Struct(f">{_ANSWER_CONTEXT_BYTES}sq")
_IDS_BYTES: Final = 16  # Ledger id and entry id: the beginning of an entry, and the end of an answer.
_ADD_DONE: Final = HEADER.pack(HEADER_BODY_BYTES, _ADD_RESPONSE_WORD, 0, 0, 0)[:-_IDS_BYTES]


# --- the bookie's side ------------------------------------------------------------------------------------------------


class AddContext(NamedTuple):
    ledger_id: int
    master_key: bytes
    flags: int
    """`packet.Flag`; bits without a meaning are kept."""


def parse_context(context: bytes) -> AddContext:
    word, master_key, ledger_id = _CONTEXT.unpack(context)
    return AddContext(ledger_id, master_key, word & 0xFFFF)


class AddRun(NamedTuple):
    """Adds in a row in the buffer, from the scan's start up to `end`."""

    end: int
    entry_ids: list[int]
    lacs: list[int]
    """The LAC that each entry carries; it is the client's, so only an upper bound for an honest one."""
    offsets: list[int]
    """The beginning of each entry in the buffer."""
    lengths: list[int]
    firsts: list[int]
    """The index in the lists above at which each context begins to hold; it holds up to the next one's."""
    contexts: list[bytes]
    """For `parse_context`."""


def scan_adds(buffer: Buffer, start: int, end: int, limit: int = FRAME_BYTES_MAX) -> AddRun:
    """Scans all adds from `start` on up to the first frame that is not a whole, valid v2 add."""
    unpack = _ADD.unpack_from
    entry_ids: list[int] = []
    lacs: list[int] = []
    offsets: list[int] = []
    lengths: list[int] = []
    firsts: list[int] = []
    contexts: list[bytes] = []
    add_entry_id, add_lac, add_offset, add_length = entry_ids.append, lacs.append, offsets.append, lengths.append
    add_first, add_context = firsts.append, contexts.append
    known = b""
    position = start
    last = end - _ADD.size
    size_max = limit - PREFIX_BYTES
    while position <= last:
        size, context, entry_id, lac = unpack(buffer, position)
        following = position + PREFIX_BYTES + size
        if following > end or size < _ADD_SIZE_MIN or size > size_max or entry_id < 0:
            break
        if context != known:
            if not _ADD_FIRST <= context < _ADD_END or context[_LEDGER_SIGN_AT] > 0x7F:
                break
            known = context
            add_first(len(entry_ids))
            add_context(context)
        add_entry_id(entry_id)
        add_lac(lac)
        add_offset(position + ENTRY_OFFSET)
        add_length(size - _ADD_HEAD_BYTES)
        position = following
    return AddRun(position, entry_ids, lacs, offsets, lengths, firsts, contexts)


def encode_add_responses(ledger_ids: Iterable[int], entry_ids: Iterable[int], codes: Iterable[int]) -> bytes:
    """Encodes answers to v2 adds, to be written at once. `codes` are `Code` or its numbers."""
    pack = HEADER.pack
    return b"".join(
        [
            pack(HEADER_BODY_BYTES, _ADD_RESPONSE_WORD, code, ledger_id, entry_id)
            for ledger_id, entry_id, code in zip(ledger_ids, entry_ids, codes, strict=True)
        ]
    )


def encode_adds_done(frames: bytes, offsets: Sequence[int]) -> bytes:
    """Encodes the common case, all stored. Entries begin as their answers end, so these bytes are copied.

    `offsets` are the beginnings of the entries in the frames of the adds; at least one.
    """
    ids_bytes = _IDS_BYTES
    return _ADD_DONE + _ADD_DONE.join([frames[offset : offset + ids_bytes] for offset in offsets])


class ReadRun(NamedTuple):
    end: int
    ledger_ids: list[int]
    entry_ids: list[int]


def scan_reads(buffer: Buffer, start: int, end: int) -> ReadRun:
    """Scans all plain v2 reads from `start` on: of an entry by its id, without flags. They all have the same size."""
    ledger_ids: list[int] = []
    entry_ids: list[int] = []
    whole = (end - start) // _READ.size * _READ.size
    frames = memoryview(buffer)[start : start + whole]
    for size, word, ledger_id, entry_id in _READ.iter_unpack(frames):
        if word != _PLAIN_READ_WORD or size != _READ_SIZE or (ledger_id | entry_id) < 0:
            break
        ledger_ids.append(ledger_id)
        entry_ids.append(entry_id)
    return ReadRun(start + len(entry_ids) * _READ.size, ledger_ids, entry_ids)


def read_response_header(ledger_id: int, entry_id: int, entry_bytes: int, code: int = 0) -> bytes:
    """Returns the bytes before the entry in the answer to a v2 read, so that the entry itself is not copied."""
    return HEADER.pack(HEADER_BODY_BYTES + entry_bytes, _READ_RESPONSE_WORD, code, ledger_id, entry_id)


# --- the client's side ------------------------------------------------------------------------------------------------


HeaderOf: TypeAlias = Callable[[int, int, int, Buffer], bytes]
"""(entry id, LAC, length, payload) → everything of an add's frame but the payload."""


class AddEncoder:
    """Encodes adds of one writer to one ledger. Their common part is made once."""

    __slots__ = ("header",)
    header: HeaderOf
    """Returns the bytes right before an entry's payload, the same to all bookies. The length is that of the ledger's
    payloads up to and including this one."""

    def __init__(
        self,
        ledger_id: int,
        master_key: bytes,
        digest: EntryDigest,
        flags: int = Flag.NONE,
        limit: int = FRAME_BYTES_MAX,
    ) -> None:
        if len(master_key) != MASTER_KEY_BYTES:
            raise LocalProtocolError(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}")
        head = WORD.pack(PacketHeader(VERSION_MAX, Operation.ADD, flags).word()) + master_key
        make = _crc32c_header if type(digest) is Crc32cDigest else _sealed_header
        self.header = make(ledger_id, head, digest, limit)


def _sealed_header(ledger_id: int, head: bytes, digest: EntryDigest, limit: int) -> HeaderOf:
    overhead = len(head) + digest.overhead_bytes
    pack, seal = struct.Struct(f">I{len(head)}s{digest.overhead_bytes}s").pack, digest.seal

    def header(entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        size = overhead + len(payload)
        check_outgoing(size, limit)
        return pack(size, head, seal(ledger_id, entry_id, lac, length, payload))

    return header


def _crc32c_header(ledger_id: int, head: bytes, digest: EntryDigest, limit: int) -> HeaderOf:
    """Does the same for the digest that nearly all ledgers have, in half the time: without the calls in between."""
    overhead = len(head) + digest.overhead_bytes
    size_max = limit - PREFIX_BYTES
    pack, pack_metadata = struct.Struct(f">I{len(head)}s{METADATA.size}sI").pack, METADATA.pack

    def header(entry_id: int, lac: int, length: int, payload: Buffer) -> bytes:
        size = overhead + len(payload)
        if size > size_max:
            check_outgoing(size, limit)
        metadata = pack_metadata(ledger_id, entry_id, lac, length)
        return pack(size, head, metadata, crc32c(payload, crc32c(metadata)))

    return header


class AddResponseRun(NamedTuple):
    end: int
    codes: list[int]
    """Numbers as received: `codes.code_of_number` for each that is not 0."""
    ledger_ids: list[int]
    entry_ids: list[int]


def scan_add_responses(buffer: Buffer, start: int, end: int) -> AddResponseRun:
    """Scans all answers to v2 adds from `start` on, up to the first frame of another kind."""
    whole = (end - start) // HEADER.size * HEADER.size
    frames = memoryview(buffer)[start : start + whole]
    alike = bytes(frames[:_ANSWER_CONTEXT_BYTES])  # Mostly all have one ledger and one code: only the entries differ.
    if whole > HEADER.size and frames[-HEADER.size : -_ENTRY_ID_BYTES] == alike:
        entry_ids = [entry_id for context, entry_id in _ANSWER.iter_unpack(frames) if context == alike]
        count = len(entry_ids)
        if count * HEADER.size == whole:
            size, word, code, ledger_id, _ = HEADER.unpack_from(frames)
            if word == _ADD_RESPONSE_WORD and size == HEADER_BODY_BYTES:
                return AddResponseRun(start + whole, [code] * count, [ledger_id] * count, entry_ids)
    return _scan_various_add_responses(frames, start)


def _scan_various_add_responses(frames: memoryview, start: int) -> AddResponseRun:
    codes: list[int] = []
    ledger_ids: list[int] = []
    entry_ids: list[int] = []
    add_code, add_ledger_id, add_entry_id = codes.append, ledger_ids.append, entry_ids.append
    for size, word, code, ledger_id, entry_id in HEADER.iter_unpack(frames):
        if word != _ADD_RESPONSE_WORD or size != HEADER_BODY_BYTES:
            break
        add_code(code)
        add_ledger_id(ledger_id)
        add_entry_id(entry_id)
    return AddResponseRun(start + len(codes) * HEADER.size, codes, ledger_ids, entry_ids)


def encode_reads(ledger_id: int, entry_ids: Iterable[int]) -> bytes:
    """Encodes plain v2 reads, one frame after the other."""
    pack = _READ.pack
    return b"".join([pack(_READ_SIZE, _PLAIN_READ_WORD, ledger_id, entry_id) for entry_id in entry_ids])


def encode_fencing_reads(ledger_id: int, entry_ids: Iterable[int], master_key: bytes) -> bytes:
    """Encodes v2 reads that fence the ledger, one frame after the other; `LAST_ENTRY` reads the last one."""
    if len(master_key) != MASTER_KEY_BYTES:
        raise LocalProtocolError(f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}")
    pack = _FENCING_READ.pack
    return b"".join(
        [pack(_FENCING_READ_SIZE, _FENCING_READ_WORD, ledger_id, entry_id, master_key) for entry_id in entry_ids]
    )


class ReadResponseRun(NamedTuple):
    end: int
    keys: list[tuple[int, int]]
    """(ledger id, entry id)"""
    codes: list[int]
    """Numbers as received: `codes.code_of_number` for each that is not 0."""
    bodies: list[Buffer]


def scan_read_responses(buffer: Buffer, start: int, end: int, *, is_ours: bool) -> ReadResponseRun:
    """Scans all whole answers to v2 reads from `start` on. Bodies are copies, or views of the buffer if it
    `is_ours`."""
    keys: list[tuple[int, int]] = []
    codes: list[int] = []
    bodies: list[Buffer] = []
    add_key, add_code, add_body = keys.append, codes.append, bodies.append
    unpack = HEADER.unpack_from
    header_bytes = HEADER.size
    size_max = FRAME_BYTES_MAX - PREFIX_BYTES
    view = memoryview(buffer)
    last = end - header_bytes
    position = start
    while position <= last:
        size, word, code, ledger_id, entry_id = unpack(buffer, position)
        following = position + PREFIX_BYTES + size
        if word != _READ_RESPONSE_WORD or following > end or size < HEADER_BODY_BYTES or size > size_max:
            break
        body = view[position + header_bytes : following]
        add_key((ledger_id, entry_id))
        add_code(code)
        add_body(body if is_ours else bytes(body))
        position = following
    return ReadResponseRun(position, keys, codes, bodies)
