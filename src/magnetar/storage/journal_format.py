"""Journal format: files of groups of records. Bytes in, bytes out; nothing here reads or writes a file.

File:      magic u32 | version u32 | number u64 | file id u64 | floor u64 | crc32c u32 | groups
           Files are numbered 1, 2, 3 …; the name is the number. The id is random: bytes that a former file left on the
           device cannot pass for ours. Every sequence number below `floor` was durable in the files before, when
           this one was made; so a tail that is missing there is seen, even if this file has no group yet.
           Version 2 differs from 1 only in what it says: the file is used again, and behind its groups there may stand
           groups of its former use.
Group:     magic u32 | body length u32 | crc32c u32 | record count u32 | file id u64 | first sequence u64 | records
           One write and one sync. The checksum covers everything behind itself; a wrong length makes it fail, too.
           Records have consecutive sequence numbers. A group without records says that the journal was closed.
Record:    kind u8 | length u32 | body. No padding.
Bodies:    ADDS          v2 add frames, one behind the other, as clients send them
           FENCE         ledger i64 | master key 20
           EXPLICIT_LAC  ledger i64 | master key 20 | what the client sent as its LAC
All numbers are big-endian.
Read next: journal_replay.py for what counts as torn and what as damaged, docs/journal.md
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Sequence
from typing import Final, NamedTuple

from crc32c import crc32c

from magnetar.errors import JournalDamagedError
from magnetar.runtime.disk import Buffer

VERSION: Final = 1
VERSION_REUSED: Final = 2
MASTER_KEY_BYTES: Final = 20
BODY_BYTES_MAX: Final = 64 * 2**20  # Bounds what a reader holds at once, whatever a damaged length says.

_FILE_MAGIC: Final = 0x4D4E4A46  # "MNJF"
_GROUP_MAGIC: Final = 0x4D4E4A47  # "MNJG"
GROUP_MAGIC_BYTES: Final = _GROUP_MAGIC.to_bytes(4, "big")

_FILE_HEADER: Final = struct.Struct(">IIQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_GROUP_START: Final = struct.Struct(">III")
_GROUP_REST: Final = struct.Struct(">IQQ")
_GROUP_HEADER: Final = struct.Struct(">IIIIQQ")
_RECORD_HEADER: Final = struct.Struct(">BI")
_KEYED: Final = struct.Struct(f">q{MASTER_KEY_BYTES}s")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CHECKSUM.size
GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size
RECORD_HEADER_BYTES: Final = _RECORD_HEADER.size
RECORD_BYTES_MAX: Final = BODY_BYTES_MAX - RECORD_HEADER_BYTES

_SUFFIX: Final = ".journal"
_NAME_DIGITS: Final = 16


class RecordKind(enum.IntEnum):
    ADDS = 1
    FENCE = 2
    EXPLICIT_LAC = 3


_KINDS: Final = {int(kind): kind for kind in RecordKind}


class JournalRecord(NamedTuple):
    sequence: int
    kind: RecordKind
    body: memoryview
    """A part of what was read; whoever keeps it keeps that in memory."""


# --- names ------------------------------------------------------------------------------------------------------------


def file_name(number: int) -> str:
    """Sorted names are in order."""
    return f"{number:0{_NAME_DIGITS}x}{_SUFFIX}"


def file_number(name: str) -> int | None:
    """None: not one of ours."""
    digits = name.removesuffix(_SUFFIX)
    if digits == name or len(digits) != _NAME_DIGITS or digits.strip("0123456789abcdef"):
        return None
    return int(digits, 16)


# --- file header ------------------------------------------------------------------------------------------------------


class FileHeader(NamedTuple):
    number: int
    file_id: int
    floor: int
    """Every sequence number below it is in the files before this one, or at or below the mark."""
    is_reused: bool = False


def encode_file_header(header: FileHeader) -> bytes:
    number, file_id, floor, is_reused = header
    version = VERSION_REUSED if is_reused else VERSION
    head = _FILE_HEADER.pack(_FILE_MAGIC, version, number, file_id, floor)
    return head + _CHECKSUM.pack(crc32c(head))


def decode_file_header(data: Buffer, name: str) -> FileHeader | None:
    """None: torn or damaged. An intact header of another version or another file is an error."""
    if len(data) < FILE_HEADER_BYTES:
        return None
    magic, version, number, file_id, floor = _FILE_HEADER.unpack_from(data)
    (checksum,) = _CHECKSUM.unpack_from(data, _FILE_HEADER.size)
    if magic != _FILE_MAGIC or crc32c(data[: _FILE_HEADER.size]) != checksum:
        return None
    if version not in (VERSION, VERSION_REUSED):
        raise JournalDamagedError(
            name, 0, f"it has format version {version} and this program knows {VERSION_REUSED}: start the newer program"
        )
    if number != file_number(name.rpartition("/")[2]):
        raise JournalDamagedError(name, 0, f"inside it says that it is {file_name(number)}: give it its name back")
    return FileHeader(number, file_id, floor, version == VERSION_REUSED)


# --- groups -----------------------------------------------------------------------------------------------------------


class GroupHeader(NamedTuple):
    body_bytes: int
    checksum: int
    records: int
    file_id: int
    first_sequence: int

    @property
    def size(self) -> int:
        """Of the whole group."""
        return GROUP_HEADER_BYTES + self.body_bytes


def record_header(kind: RecordKind, length: int) -> bytes:
    return _RECORD_HEADER.pack(kind, length)


def group_header(file_id: int, first_sequence: int, count: int, body_bytes: int, body: Sequence[Buffer]) -> bytes:
    """What goes before the body, which is read for the checksum and not copied."""
    rest = _GROUP_REST.pack(count, file_id, first_sequence)
    checksum = crc32c(rest)
    for chunk in body:
        checksum = crc32c(chunk, checksum)
    return _GROUP_START.pack(_GROUP_MAGIC, body_bytes, checksum) + rest


def decode_group_header(data: Buffer) -> GroupHeader | None:
    """None: not the beginning of a group. If not None, the checksum still has to be compared."""
    if len(data) < GROUP_HEADER_BYTES:
        return None
    magic, *fields = _GROUP_HEADER.unpack_from(data)
    header = GroupHeader(*fields)
    return header if magic == _GROUP_MAGIC and header.body_bytes <= BODY_BYTES_MAX else None


def is_intact(header: GroupHeader, group: Buffer) -> bool:
    return len(group) == header.size and crc32c(group[_GROUP_START.size :]) == header.checksum


def decode_records(header: GroupHeader, group: memoryview) -> list[JournalRecord]:
    """Of an intact group; ValueError if it was sealed with something else inside than records."""
    records = []
    position, end = GROUP_HEADER_BYTES, len(group)
    for sequence in range(header.first_sequence, header.first_sequence + header.records):
        body = position + RECORD_HEADER_BYTES
        if body > end:
            raise ValueError(f"it has no room for record {sequence}")
        kind, length = _RECORD_HEADER.unpack_from(group, position)
        position = body + length
        if kind not in _KINDS or position > end:
            raise ValueError(f"record {sequence} of kind {kind} and {length} bytes makes no sense")
        records.append(JournalRecord(sequence, _KINDS[kind], group[body:position]))
    if position != end:
        raise ValueError(f"{end - position} bytes are left behind its last record")
    return records


# --- bodies -----------------------------------------------------------------------------------------------------------


class Fence(NamedTuple):
    ledger_id: int
    master_key: bytes


class ExplicitLac(NamedTuple):
    ledger_id: int
    master_key: bytes
    body: bytes


def encode_fence(fence: Fence) -> bytes:
    return _keyed(fence.ledger_id, fence.master_key)


def decode_fence(body: Buffer) -> Fence:
    """ValueError if it is none."""
    if len(body) != _KEYED.size:
        raise ValueError(f"a fence has {_KEYED.size} bytes, not {len(body)}")
    return Fence(*_KEYED.unpack(body))


def encode_explicit_lac(lac: ExplicitLac) -> bytes:
    return _keyed(lac.ledger_id, lac.master_key) + lac.body


def decode_explicit_lac(body: Buffer) -> ExplicitLac:
    """ValueError if it is none."""
    if len(body) < _KEYED.size:
        raise ValueError(f"an explicit LAC has at least {_KEYED.size} bytes, not {len(body)}")
    ledger_id, master_key = _KEYED.unpack_from(body)
    return ExplicitLac(ledger_id, master_key, bytes(body[_KEYED.size :]))


def _keyed(ledger_id: int, master_key: bytes) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES, f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}"
    return _KEYED.pack(ledger_id, master_key)
