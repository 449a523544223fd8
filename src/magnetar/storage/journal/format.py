"""Journal format: files of groups of records. Bytes in, bytes out; nothing here reads or writes a file.

Format:    all numbers are big-endian.
           file: magic u32 | version u32 | number u64 | file id u64 | floor u64 | crc32c u32 | groups
           Files are numbered 1, 2, 3 …; the name is the number. The id is random: bytes that a former file left on the
           device cannot pass for ours. Every sequence number below `floor` was durable in the files before, when
           this one was made; so a missing tail of those is noticed, even if this file has no group yet.
           Version 2 differs from 1 only in its meaning: the file is used again, and groups of its former use may
           follow its own.
           group: magic u32 | body length u32 | crc32c u32 | record count u32 | file id u64 | first sequence u64 |
           records. One write and one sync. The checksum covers everything after itself; a wrong length makes it fail,
           too. Records have consecutive sequence numbers. A group without records says that the journal was closed.
           record: kind u8 | length u32 | body. No padding.
           bodies: ADDS          v2 add frames, one after the other, as clients send them
                   FENCE         ledger i64 | master key 20
                   EXPLICIT_LAC  ledger i64 | master key 20 | the LAC as the client sent it
Read next: replay.py for what counts as torn and what as damaged, docs/journal.md
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

_FILE_HEADER: Final = struct.Struct(">IIQQQ")
_CHECKSUM: Final = struct.Struct(">I")
_GROUP_START: Final = struct.Struct(">III")
_GROUP_REST: Final = struct.Struct(">IQQ")
_GROUP_HEADER: Final = struct.Struct(">IIIIQQ")
_RECORD_HEADER: Final = struct.Struct(">BI")
_KEYED: Final = struct.Struct(f">q{MASTER_KEY_BYTES}s")

FILE_HEADER_BYTES: Final = _FILE_HEADER.size + _CHECKSUM.size
GROUP_HEADER_BYTES: Final = _GROUP_HEADER.size
FILE_ID_OFFSET: Final = 16  # In a group's header.
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
    """A view of the bytes that were read; it keeps all of them in memory."""


# --- names ------------------------------------------------------------------------------------------------------------


def file_name(number: int) -> str:
    """Returns the file's name; sorted names are in order."""
    return f"{number:0{_NAME_DIGITS}x}{_SUFFIX}"


def file_number(name: str) -> int | None:
    """Returns None if the name is not a journal file's."""
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
    """Returns None if it is torn or damaged. An intact header of another version or another file raises."""
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
        """The size of the whole group."""
        return GROUP_HEADER_BYTES + self.body_bytes


def file_id_bytes(file_id: int) -> bytes:
    """Returns the bytes of the file id as a group's header has them."""
    return file_id.to_bytes(8, "big")


def record_header(kind: RecordKind, length: int) -> bytes:
    return _RECORD_HEADER.pack(kind, length)


def group_header(file_id: int, first_sequence: int, count: int, body_bytes: int, body: Sequence[Buffer]) -> bytes:
    """Returns the header of a group. The body is read for the checksum and not copied."""
    rest = _GROUP_REST.pack(count, file_id, first_sequence)
    checksum = crc32c(rest)
    for chunk in body:
        checksum = crc32c(chunk, checksum)
    return _GROUP_START.pack(_GROUP_MAGIC, body_bytes, checksum) + rest


def decode_group_header(data: Buffer) -> GroupHeader | None:
    """Returns None if this is not the beginning of a group. Otherwise the checksum still has to be compared."""
    if len(data) < GROUP_HEADER_BYTES:
        return None
    magic, *fields = _GROUP_HEADER.unpack_from(data)
    header = GroupHeader(*fields)
    return header if magic == _GROUP_MAGIC and header.body_bytes <= BODY_BYTES_MAX else None


def is_intact(header: GroupHeader, group: Buffer) -> bool:
    return len(group) == header.size and crc32c(group[_GROUP_START.size :]) == header.checksum


def decode_records(header: GroupHeader, group: memoryview) -> list[JournalRecord]:
    """Decodes an intact group; raises ValueError if it was sealed with anything but records inside."""
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
        raise ValueError(f"{end - position} bytes are left after its last record")
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
    """Raises ValueError if it is not a fence."""
    if len(body) != _KEYED.size:
        raise ValueError(f"a fence has {_KEYED.size} bytes, not {len(body)}")
    return Fence(*_KEYED.unpack(body))


def encode_explicit_lac(lac: ExplicitLac) -> bytes:
    return _keyed(lac.ledger_id, lac.master_key) + lac.body


def decode_explicit_lac(body: Buffer) -> ExplicitLac:
    """Raises ValueError if it is not an explicit LAC."""
    if len(body) < _KEYED.size:
        raise ValueError(f"an explicit LAC has at least {_KEYED.size} bytes, not {len(body)}")
    ledger_id, master_key = _KEYED.unpack_from(body)
    return ExplicitLac(ledger_id, master_key, bytes(body[_KEYED.size :]))


def _keyed(ledger_id: int, master_key: bytes) -> bytes:
    assert len(master_key) == MASTER_KEY_BYTES, f"a master key has {MASTER_KEY_BYTES} bytes, not {len(master_key)}"
    return _KEYED.pack(ledger_id, master_key)
