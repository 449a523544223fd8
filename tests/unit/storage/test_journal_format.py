"""What is encoded is decoded alike; what is cut or flipped is not taken for a group."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from magnetar.errors import JournalDamagedError
from magnetar.storage.journal.format import (
    FILE_HEADER_BYTES,
    GROUP_HEADER_BYTES,
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
    file_number,
    group_header,
    is_intact,
    record_header,
)
from magnetar.storage.journal.journal import JournalQueue

U64 = st.integers(0, 2**64 - 1)
I64 = st.integers(-(2**63), 2**63 - 1)
KEY = st.binary(min_size=20, max_size=20)
BODIES = st.lists(st.tuples(st.sampled_from(RecordKind), st.lists(st.binary(max_size=50), max_size=4)), max_size=8)


def encoded(bodies: list[tuple[RecordKind, list[bytes]]], file_id: int = 7, first: int = 1) -> bytes:
    queue = JournalQueue(first, group_bytes_max=2**20, records_max=100, bytes_max=2**20)
    for kind, chunks in bodies:
        queue.add(kind, chunks, None)
    return b"".join(queue.take().seal(file_id)) if bodies else group_header(file_id, first, 0, 0, [])


def whole(data: bytes) -> bool:
    header = decode_group_header(data)
    return header is not None and is_intact(header, data)


@given(bodies=BODIES, file_id=U64, first=st.integers(1, 2**63))
def test_group_comes_back_as_it_was(bodies: list[tuple[RecordKind, list[bytes]]], file_id: int, first: int) -> None:
    data = encoded(bodies, file_id, first)
    header = decode_group_header(data)
    assert header is not None
    assert is_intact(header, data)
    assert (header.file_id, header.first_sequence, header.records) == (file_id, first, len(bodies))
    records = decode_records(header, memoryview(data))
    assert [record.sequence for record in records] == list(range(first, first + len(bodies)))
    assert [(record.kind, bytes(record.body)) for record in records] == [(k, b"".join(c)) for k, c in bodies]


def test_no_flipped_bit_leaves_a_group_intact() -> None:
    data = encoded([(RecordKind.ADDS, [b"one", b"two"]), (RecordKind.FENCE, [b"x" * 28])])
    assert whole(data)
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        header = decode_group_header(damaged)
        # The reader takes as many bytes as the header says, if the file has them.
        assert header is None or not is_intact(header, bytes(damaged + bytes(100))[: header.size])


def test_no_part_of_a_group_is_intact() -> None:
    data = encoded([(RecordKind.ADDS, [b"one"])])
    assert not [length for length in range(len(data)) if whole(data[:length])]


@given(st.binary(max_size=200))
def test_anything_may_be_decoded(data: bytes) -> None:
    assert not whole(data)
    assert decode_file_header(data, file_name(1)) is None


def test_hostile_length_is_no_group() -> None:
    header = bytearray(encoded([(RecordKind.ADDS, [b"x"])])[:GROUP_HEADER_BYTES])
    header[4:8] = b"\xff" * 4
    assert decode_group_header(header) is None


@pytest.mark.parametrize(
    "body",
    [
        record_header(RecordKind.ADDS, 100) + b"short",
        b"\x63" + record_header(RecordKind.ADDS, 0)[1:],
        record_header(RecordKind.ADDS, 1) + b"xy",
        b"\x01\x00",
    ],
)
def test_sealed_group_without_proper_records_is_refused(body: bytes) -> None:
    data = group_header(7, 1, 1, len(body), [body]) + body
    header = decode_group_header(data)
    assert header is not None
    assert is_intact(header, data)
    with pytest.raises(ValueError, match="record"):
        decode_records(header, memoryview(data))


@given(number=st.integers(1, 2**64 - 1), file_id=U64, floor=U64)
def test_file_header_comes_back_and_no_part_of_it_does(number: int, file_id: int, floor: int) -> None:
    header = FileHeader(number, file_id, floor)
    data = encode_file_header(header)
    assert len(data) == FILE_HEADER_BYTES
    assert decode_file_header(data, f"journal/{file_name(number)}") == header
    assert not any(decode_file_header(data[:length], file_name(number)) for length in range(len(data)))


def test_no_flipped_bit_leaves_a_file_header_intact() -> None:
    data = encode_file_header(FileHeader(1, 2, 3))
    for bit in range(8 * len(data)):
        damaged = bytearray(data)
        damaged[bit // 8] ^= 1 << bit % 8
        assert decode_file_header(damaged, file_name(1)) is None


def test_renamed_file_says_which_one_it_is() -> None:
    with pytest.raises(JournalDamagedError, match=f"it is {file_name(1)}"):
        decode_file_header(encode_file_header(FileHeader(1, 2, 3)), file_name(9))


@given(st.lists(st.integers(0, 2**64 - 1)))
def test_sorted_names_are_in_order(numbers: list[int]) -> None:
    assert [file_number(name) for name in sorted(map(file_name, numbers))] == sorted(numbers)


@pytest.mark.parametrize("name", ["1.journal", "x" * 16 + ".journal", "0" * 16, "0" * 16 + ".tmp", ".journal"])
def test_other_names_are_not_ours(name: str) -> None:
    assert file_number(name) is None


@given(ledger_id=I64, key=KEY, body=st.binary(max_size=100))
def test_fence_and_explicit_lac_come_back(ledger_id: int, key: bytes, body: bytes) -> None:
    fence, lac = Fence(ledger_id, key), ExplicitLac(ledger_id, key, body)
    assert decode_fence(memoryview(encode_fence(fence))) == fence
    assert decode_explicit_lac(memoryview(encode_explicit_lac(lac))) == lac


@pytest.mark.parametrize("length", [0, 27, 29])
def test_fence_of_another_length_is_refused(length: int) -> None:
    with pytest.raises(ValueError, match="28 bytes"):
        decode_fence(bytes(length))


def test_short_explicit_lac_is_refused() -> None:
    with pytest.raises(ValueError, match="at least 28 bytes"):
        decode_explicit_lac(bytes(27))


def test_chunks_are_not_copied() -> None:
    chunk = b"x" * 1000
    queue = JournalQueue(1, group_bytes_max=2**20, records_max=10, bytes_max=2**20)
    queue.add(RecordKind.ADDS, [chunk, memoryview(chunk)], None)
    sealed = queue.take().seal(1)
    assert sealed[2] is chunk
    assert len(sealed) == 4
