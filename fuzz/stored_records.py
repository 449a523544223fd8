"""The decoders of a bookie's own files. What a checksum protects is also tried as if its checksum had been right."""

from __future__ import annotations

from fuzz.engine import Target
from magnetar.errors import IndexDamagedError, JournalDamagedError
from magnetar.storage.journal_format import (
    ExplicitLac,
    Fence,
    FileHeader,
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
from magnetar.storage.journal_mark import decode_mark, encode_mark
from magnetar.storage.ledger_flags import LedgerFlags, decode_flags, encode_flags

_KEY = b"k" * 20
_LEDGER_ID = 5
_FLAGS = LedgerFlags(master_key=_KEY, fenced=True, explicit_lac=b"a sealed lac, say")


def targets() -> list[Target]:
    return [
        Target("journal-group", [_group()], _read_group, (ValueError,), lambda data: bool(decode_group_header(data))),
        Target(
            "journal-file-header",
            [encode_file_header(FileHeader(3, 77, 12))],
            lambda data: _found(decode_file_header(data, file_name(3))),
            (JournalDamagedError, ValueError),
        ),
        Target("journal-fence", [encode_fence(Fence(_LEDGER_ID, _KEY))], decode_fence, (ValueError,)),
        Target(
            "journal-explicit-lac",
            [encode_explicit_lac(ExplicitLac(_LEDGER_ID, _KEY, b"body"))],
            decode_explicit_lac,
            (ValueError,),
        ),
        Target("journal-mark", [encode_mark(12_345)], lambda data: _found(decode_mark(data)), (ValueError,)),
        Target(
            "ledger-flags",
            [encode_flags(_LEDGER_ID, _FLAGS)],
            lambda data: decode_flags(_LEDGER_ID, data),
            (IndexDamagedError,),
        ),
    ]


def _found(value: object) -> object:
    """These decoders say None to what is torn."""
    if value is None:
        raise ValueError("torn")
    return value


def _group() -> bytes:
    parts: list[bytes] = []
    for kind, body in (
        (RecordKind.ADDS, b"frames of entries" * 5),
        (RecordKind.FENCE, b"x" * 28),
        (RecordKind.ADDS, b""),
    ):
        parts += (record_header(kind, len(body)), body)
    return group_header(77, 40, 3, sum(map(len, parts)), parts) + b"".join(parts)


def _read_group(data: bytes) -> None:
    header = decode_group_header(data)
    _found(header)
    assert header is not None
    is_intact(header, data)
    decode_records(header, memoryview(data))
