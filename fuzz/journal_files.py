"""The journal: its records one by one, and whole files as a start replays them.

Raw:       damage as a disk makes it. Nothing but what was written may come out, in order and without a gap; and if
           another file follows that was begun when this one was complete, all of it or an error.
Sealed:    the same with every checksum made right again, so that the mutations reach what is behind it.
Reused:    a file that was used before: groups of its former use stand behind its own, and must never come out.
"""

from __future__ import annotations

import struct
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar, cast

from crc32c import crc32c

from fuzz.engine import Target
from fuzz.stored_records import TornError, found, resealed
from magnetar.errors import JournalDamagedError
from magnetar.runtime.disk import Disk
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    ExplicitLac,
    Fence,
    FileHeader,
    JournalRecord,
    RecordKind,
    decode_explicit_lac,
    decode_fence,
    decode_file_header,
    decode_group_header,
    decode_records,
    encode_explicit_lac,
    encode_fence,
    encode_file_header,
    file_name,
    group_header,
    is_intact,
    record_header,
)
from magnetar.storage.journal.replay import replay_files

T = TypeVar("T")

_KEY = b"k" * 20
_DIRECTORY = "journal"
_NUMBER = 3
_ROOM = bytes(200)
_NEW, _REUSED, _FORMER, _NEXT = 77, 78, 66, 79  # File ids.
_RECORDS = (
    (RecordKind.ADDS, b"frames of entries" * 3),
    (RecordKind.FENCE, encode_fence(Fence(5, _KEY))),
    (RecordKind.EXPLICIT_LAC, encode_explicit_lac(ExplicitLac(5, _KEY, b"body"))),
    (RecordKind.ADDS, b""),
    (RecordKind.ADDS, b"more frames"),
)
"""Of every file here: sequence numbers 1 to 5, in three groups."""
_FORMER_RECORDS = tuple((RecordKind.ADDS, bytes([66]) * len(body)) for _, body in _RECORDS)
_DAMAGE = (JournalDamagedError,)


def targets() -> list[Target]:
    headers = [encode_file_header(FileHeader(_NUMBER, _NEW, 12)), encode_file_header(FileHeader(_NUMBER, 1, 0, True))]
    files = _files()
    return [
        Target("journal-group", [_group(_NEW, 1, _RECORDS[:3])], _read_group, (TornError, ValueError), _begins_a_group),
        Target("journal-file-header", headers, _file_header, (*_DAMAGE, TornError)),
        Target("journal-file-header-sealed", headers, resealed(_file_header, _seal), (*_DAMAGE, TornError)),
        Target("journal-fence", [_RECORDS[1][1]], decode_fence, (ValueError,)),
        Target("journal-explicit-lac", [_RECORDS[2][1]], decode_explicit_lac, (ValueError,)),
        Target("journal-last-file", files, _last_file, _DAMAGE, _has_header),
        Target(
            "journal-earlier-file", [file for file in files if file != _torn()], _earlier_file, _DAMAGE, _has_header
        ),
        Target("journal-last-file-sealed", files, lambda data: _replayed([_all_resealed(data)]), _DAMAGE, _has_header),
    ]


# --- making files -----------------------------------------------------------------------------------------------------


def _files() -> list[bytes]:
    """As they come: being written, closed, used again, torn by a crash."""
    new = encode_file_header(FileHeader(_NUMBER, _NEW, 1))
    reused = encode_file_header(FileHeader(_NUMBER, _REUSED, 1, is_reused=True))
    former = _groups(_FORMER, _FORMER_RECORDS, first=6)  # Numbers that would go on from ours: only the id tells.
    own = _groups(_REUSED)
    return [
        new + _groups(_NEW) + _ROOM,
        new + _groups(_NEW) + _group(_NEW, 6, ()),
        reused + own + former,
        reused + own + former[len(own) // 2 :] + former,
        _torn(),
    ]


def _torn() -> bytes:
    return encode_file_header(FileHeader(_NUMBER, _NEW, 1)) + _groups(_NEW)[:-5] + _ROOM


def _groups(file_id: int, records: Sequence[tuple[RecordKind, bytes]] = _RECORDS, first: int = 1) -> bytes:
    return b"".join(_group(file_id, first + at, records[at:end]) for at, end in ((0, 2), (2, 4), (4, 5)))


def _group(file_id: int, first: int, records: Sequence[tuple[RecordKind, bytes]]) -> bytes:
    parts: list[bytes] = []
    for kind, body in records:
        parts += (record_header(kind, len(body)), body)
    return group_header(file_id, first, len(records), sum(map(len, parts)), parts) + b"".join(parts)


# --- single records ---------------------------------------------------------------------------------------------------


def _read_group(data: bytes) -> None:
    header = decode_group_header(data)
    found(header)
    assert header is not None
    is_intact(header, data)
    decode_records(header, memoryview(data))


def _begins_a_group(data: bytes) -> bool:
    return decode_group_header(data) is not None


def _file_header(data: bytes) -> object:
    header = decode_file_header(data, file_name(_NUMBER))
    found(header)
    assert header is not None
    assert decode_file_header(encode_file_header(header), file_name(_NUMBER)) == header, "another header after a round"
    return header


# --- whole files ------------------------------------------------------------------------------------------------------


def _has_header(data: bytes) -> bool:
    return data[:8] in (b"MNJF\0\0\0\1", b"MNJF\0\0\0\2")


def _last_file(data: bytes) -> object:
    return _check_written(_replayed([data]))


def _earlier_file(data: bytes) -> object:
    """Behind it a file with a group, or, half of the time, with nothing yet but its header."""
    following = encode_file_header(FileHeader(_NUMBER + 1, _NEXT, 6))
    if len(data) % 2:
        records = _replayed([data, following + _ROOM])
    else:
        *records, last = _replayed([data, following + _group(_NEXT, 6, _RECORDS[:1]) + _ROOM])
        assert last.sequence == 6, "a record went missing without a word"
    assert len(records) == len(_RECORDS), "a record went missing without a word"
    return _check_written(records)


def _check_written(records: Sequence[JournalRecord]) -> object:
    assert len(records) <= len(_RECORDS), "more than was written"
    for record in records:
        assert (record.kind, bytes(record.body)) == _RECORDS[record.sequence - 1], "this was never written"
    return records


def _replayed(files: Sequence[bytes]) -> list[JournalRecord]:
    names = [file_name(_NUMBER + index) for index in range(len(files))]
    delivered: list[JournalRecord] = []
    disk = cast("Disk", _Files(dict(zip(names, files, strict=True))))
    _completed(replay_files(disk, _DIRECTORY, 0, delivered.append))
    numbers = [record.sequence for record in delivered]
    assert numbers == list(range(1, len(numbers) + 1)), "a gap in what was delivered"
    return delivered


def _all_resealed(data: bytes) -> bytes:
    """The header's checksum, and that of each group as far as one begins where the one before ends."""
    if len(data) < FILE_HEADER_BYTES:
        return data
    head, position = data[: FILE_HEADER_BYTES - 4], FILE_HEADER_BYTES
    parts = [head + _seal(head)]
    while (header := decode_group_header(data[position:])) is not None and position + header.size <= len(data):
        group = data[position : position + header.size]
        parts.append(group[:8] + _seal(group[12:]) + group[12:])
        position += header.size
    return b"".join([*parts, data[position:]])


def _seal(body: bytes) -> bytes:
    return struct.pack(">I", crc32c(body))


class _Files:
    """As much of a `Disk` as replay uses; nothing here ever waits."""

    def __init__(self, files: dict[str, bytes]) -> None:
        self._files = files

    async def list(self, _directory: str) -> list[str]:
        return sorted(self._files)

    async def open(self, path: str) -> _File:
        return _File(path, self._files[path.removeprefix(f"{_DIRECTORY}/")])


class _File:
    def __init__(self, path: str, content: bytes) -> None:
        self.path = path
        self.size = len(content)
        self._content = content

    async def read(self, offset: int, length: int) -> bytes:
        return self._content[offset : offset + length]

    async def aclose(self) -> None: ...


def _completed(work: Coroutine[Any, Any, T]) -> T:
    try:
        work.send(None)
    except StopIteration as end:
        return cast("T", end.value)
    raise AssertionError("it waits for something")
