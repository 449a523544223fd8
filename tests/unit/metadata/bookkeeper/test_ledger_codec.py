"""Ledger metadata as bytes: what survives a round, what is refused and why."""

from __future__ import annotations

import time
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from interop.metadata.fields import as_stored
from interop.metadata.samples import FULL, ledgers
from magnetar.errors import MalformedMetadataError
from magnetar.ids import BookieId, EntryId, LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import VALUE_BYTES_MAX, decode, encode
from magnetar.metadata.bookkeeper.ledger_metadata import (
    FormatVersion,
    Fragment,
    LedgerMetadata,
    LedgerState,
)
from magnetar.metadata.bookkeeper.proto.ledger_metadata_pb2 import LedgerMetadataFormat
from magnetar.wire.bookkeeper.digests import DigestType
from tests.rows import every_row

NODE_CTIME = 1_700_000_000_000
V1 = b"BookieMetadataFormatVersion\t1\n"
V2 = b"BookieMetadataFormatVersion\t2\n"
V3 = b"BookieMetadataFormatVersion\t3\n"


def read(value: bytes) -> LedgerMetadata:
    return decode(LedgerId(4_711), value, node_created_ms=NODE_CTIME)


def delimited(body: bytes) -> bytes:
    length, prefix = len(body), bytearray()
    while length > 0x7F:
        prefix.append(length & 0x7F | 0x80)
        length >>= 7
    return V3 + bytes([*prefix, length]) + body


def message(**changes: Any) -> LedgerMetadataFormat:
    made = LedgerMetadataFormat(
        quorumSize=2, ensembleSize=3, length=0, state="OPEN", digestType="CRC32C", password=b"pw", ackQuorumSize=2
    )
    made.segment.add(firstEntryId=0, ensembleMember=["a:1", "b:1", "c:1"])
    for name, value in changes.items():
        if value is None:
            made.ClearField(name)
        else:
            setattr(made, name, value)
    return made


def as_v3(made: LedgerMetadataFormat) -> bytes:
    return delimited(made.SerializePartialToString())


@pytest.mark.parametrize("sample", [pytest.param(sample, id=name) for name, sample in ledgers()])
def test_metadata_survives_a_round_through_its_own_version(sample: LedgerMetadata) -> None:
    ours = replace(sample, ledger_id=LedgerId(4_711))
    assert read(encode(ours)) == as_stored(ours, NODE_CTIME)


@st.composite
def any_metadata(draw: st.DrawFn) -> LedgerMetadata:
    size = draw(st.integers(1, 6))
    write = draw(st.integers(1, size))
    state = draw(st.sampled_from(LedgerState))
    starts = [0, *sorted(draw(st.sets(st.integers(1, 2**63 - 1), max_size=5)))]
    bookie = st.from_regex(r"[a-z0-9:.\-_]{1,30}", fullmatch=True).filter(lambda name: name != "readonly")
    secret = draw(st.none() | st.tuples(st.sampled_from(DigestType), st.binary(max_size=40)))
    closed = state is LedgerState.CLOSED
    return LedgerMetadata(
        ledger_id=LedgerId(4_711),
        format_version=draw(st.sampled_from([FormatVersion.TEXT_PROTOBUF, FormatVersion.BINARY_PROTOBUF])),
        ensemble_size=size,
        write_quorum=write,
        ack_quorum=draw(st.integers(1, write)),
        fragments=tuple(
            Fragment(EntryId(start), tuple(BookieId(draw(bookie)) for _ in range(size))) for start in starts
        ),
        state=state,
        last_entry_id=EntryId(draw(st.integers(-1, 2**63 - 1)) if closed else -1),
        length=draw(st.integers(0, 2**63 - 1)) if closed else 0,
        digest_type=secret and secret[0],
        password=secret and secret[1],
        ctime_ms=draw(st.integers(-1, 2**63 - 1)),
        stores_ctime=draw(st.booleans()),
        custom_metadata=draw(st.dictionaries(st.text(max_size=10), st.binary(max_size=20), max_size=4)),
        c_token=draw(st.integers(0, 2**63 - 1)),
    )


@given(any_metadata())
def test_any_metadata_survives_a_round_through_protobuf(metadata: LedgerMetadata) -> None:
    assert read(encode(metadata)) == as_stored(metadata, NODE_CTIME)


def test_version_1_leaves_out_what_it_has_no_room_for() -> None:
    stored = read(encode(replace(FULL, format_version=FormatVersion.TEXT)))
    assert stored.ack_quorum == stored.write_quorum == 3
    assert stored.digest_type is stored.password is None
    assert (stored.ctime_ms, stored.c_token, stored.custom_metadata) == (-1, 0, {})
    assert stored.fragments == FULL.fragments
    assert (stored.last_entry_id, stored.length) == (FULL.last_entry_id, FULL.length)


def test_version_1_is_the_lines_that_bookkeeper_writes() -> None:
    ledger = LedgerMetadata(
        ledger_id=LedgerId(1),
        ensemble_size=2,
        write_quorum=2,
        ack_quorum=2,
        fragments=(Fragment(EntryId(0), (BookieId("a:1"), BookieId("b:1"))),),
        format_version=FormatVersion.TEXT,
    )
    assert encode(ledger) == V1 + b"2\n2\n0\n0\ta:1\tb:1\n"
    assert encode(replace(ledger, state=LedgerState.IN_RECOVERY)) == V1 + b"2\n2\n0\n0\ta:1\tb:1\n-102\tCLOSED"
    closed = replace(ledger, state=LedgerState.CLOSED, last_entry_id=EntryId(9), length=100)
    assert encode(closed) == V1 + b"2\n2\n100\n0\ta:1\tb:1\n9\tCLOSED"


def test_version_2_has_no_token() -> None:
    assert b"cToken" not in encode(replace(FULL, format_version=FormatVersion.TEXT_PROTOBUF))


def test_without_an_ack_quorum_it_is_the_write_quorum() -> None:
    assert read(as_v3(message(ackQuorumSize=None))).ack_quorum == 2


def test_without_a_password_there_is_no_digest_type_and_neither_is_written() -> None:
    stored = read(as_v3(message(password=None)))
    assert stored.digest_type is stored.password is None
    assert read(encode(stored)) == stored


def test_a_creation_time_that_was_not_stored_is_the_nodes_and_is_not_written() -> None:
    stored = read(as_v3(message()))
    assert (stored.ctime_ms, stored.stores_ctime) == (NODE_CTIME, False)
    assert decode(stored.ledger_id, encode(stored), node_created_ms=5).ctime_ms == 5


def test_a_creation_time_that_was_stored_stays() -> None:
    stored = read(as_v3(message(ctime=77)))
    assert decode(stored.ledger_id, encode(stored), node_created_ms=5).ctime_ms == 77


def test_last_entry_and_length_of_a_ledger_that_is_not_closed_are_not_read() -> None:
    stored = read(as_v3(message(lastEntryId=5, length=500)))
    assert (stored.last_entry_id, stored.length) == (-1, 0)


def test_fields_of_a_newer_writer_survive_an_update() -> None:
    extra = b"\xa2\x06\x05hello"  # Field 100, five bytes.
    made = message()
    made.segment[0].MergeFromString(b"\xa0\x06\x2a")  # Field 100 of a fragment, the number 42.
    stored = read(delimited(made.SerializeToString() + extra))
    updated = replace(stored, state=LedgerState.CLOSED, last_entry_id=EntryId(3), length=30)
    again = read(encode(updated))
    assert again == updated
    assert again.unknown_fields == extra
    assert again.fragments[0].unknown_fields == b"\xa0\x06\x2a"


def test_the_fragment_of_an_entry_is_the_last_that_begins_before_it() -> None:
    starts = [f.first_entry_id for f in FULL.fragments]
    assert FULL.fragment_of(EntryId(0)) is FULL.fragments[0]
    assert FULL.fragment_of(EntryId(starts[1] - 1)) is FULL.fragments[0]
    assert FULL.fragment_of(EntryId(starts[1])) is FULL.fragments[1]
    assert FULL.fragment_of(EntryId(2**62)) is FULL.fragments[2]


def test_a_password_is_not_part_of_the_printed_form() -> None:
    assert "secret" not in repr(FULL)


TEXT = (
    b"quorumSize: 1\nensembleSize: 1\nlength: 0\nstate: OPEN\nsegment {\n ensembleMember: 'a:1'\n firstEntryId: 0\n}\n"
)

REFUSED = {
    "nothing": (b"", "BookieMetadataFormatVersion"),
    "another value": (b"\x00\x01\x02", "BookieMetadataFormatVersion"),
    "a header without its end": (b"BookieMetadataFormatVersion\t3", "BookieMetadataFormatVersion"),
    "a version that is no number": (b"BookieMetadataFormatVersion\tx\n", "BookieMetadataFormatVersion"),
    "a version of the future": (b"BookieMetadataFormatVersion\t4\n", "format version 4"),
    "version 0": (b"BookieMetadataFormatVersion\t0\n", "format version 0"),
    "too many bytes": (V3 + bytes(VALUE_BYTES_MAX), "more than"),
    "version 3: no length": (V3, "length"),
    "version 3: a length that never ends": (V3 + b"\xff" * 20, "32 bits"),
    "version 3: a huge length": (V3 + b"\xff\xff\xff\xff\x07abc", "2147483647 bytes, but 3 follow"),
    "version 3: cut off": (as_v3(message())[:-5], "follow"),
    "version 3: more than its length": (as_v3(message()) + b"x", "follow"),
    "version 3: no protobuf": (delimited(b"\xff\xff\xff"), "not a message"),
    "version 3: an empty message": (delimited(b""), "required field"),
    "version 3: no state": (as_v3(message(state=None)), "required field"),
    "version 3: an unknown state": (delimited(message(state=None).SerializePartialToString() + b"\x28\x09"), "state"),
    "version 3: an unknown digest type": (delimited(message().SerializeToString() + b"\x38\x09"), "digestType"),
    "version 3: a field of another type": (delimited(message().SerializeToString() + b"\x1a\x01x"), "length"),
    "version 3: no fragment": (as_v3(message(segment=None)), "entry 0"),
    "version 3: negative write quorum": (as_v3(message(quorumSize=-1, ackQuorumSize=-1)), "quorums"),
    "version 3: write quorum beyond the ensemble": (as_v3(message(quorumSize=4)), "quorums"),
    "version 3: ack quorum beyond the write quorum": (as_v3(message(ackQuorumSize=3)), "quorums"),
    "version 3: ack quorum 0": (as_v3(message(ackQuorumSize=0)), "quorums"),
    "version 3: an ensemble of another size": (as_v3(message(ensembleSize=4)), "has 3 bookies"),
    "version 3: closed without a last entry": (as_v3(message(state=3)), "last entry"),
    "version 3: a negative length": (as_v3(message(state=3, lastEntryId=1, length=-5)), "length -5"),
    "version 3: a negative last entry": (as_v3(message(state=3, lastEntryId=-2)), "last entry -2"),
    "version 3: a negative creation time": (as_v3(message(ctime=-5)), "creation time"),
    "version 2: not UTF-8": (V2 + b"\xff\xfe", "utf-8"),
    "version 2: no protobuf text": (V2 + b"hello {", "not a message"),
    "version 2: an unknown field": (V2 + TEXT + b"other: 1\n", "other"),
    "version 2: a number out of range": (V2 + TEXT + b"ackQuorumSize: 99999999999\n", "not a message"),
    "version 2: an unknown enum value": (V2 + TEXT.replace(b"OPEN", b"AJAR"), "AJAR"),
    "version 2: an escape that does not exist": (V2 + TEXT.replace(b"a:1", b"a\\m"), "escape"),
    "version 2: nothing": (V2, "required field"),
    "version 2: deeply nested": (V2 + b"segment {" * 5_000, "not a message"),
    "version 1: nothing": (V1, "lines"),
    "version 1: not UTF-8": (V1 + b"\xff\xfe\n", "utf-8"),
    "version 1: a word for a number": (V1 + b"two\n2\n0\n", "not a number"),
    "version 1: no fragment": (V1 + b"2\n2\n0\n", "entry 0"),
    "version 1: an empty line": (V1 + b"1\n1\n0\n\n0\ta:1\n", "neither"),
    "version 1: an ensemble of another size": (V1 + b"2\n2\n0\n0\ta:1\n", "has 1 bookies"),
    "version 1: a name that is no bookie id": (V1 + b"1\n1\n0\n0\ta b\n", "not a bookie id"),
    "version 1: a huge number": (V1 + b"1\n1\n" + b"9" * 5_000 + b"\n0\ta:1\n", "not a number"),
    "version 1: a negative last entry": (V1 + b"1\n1\n0\n0\ta:1\n-5\tCLOSED", "last entry -5"),
}


@every_row(("value", "reason"), REFUSED.values(), ids=REFUSED.keys())
def test_a_value_that_is_not_ledger_metadata_is_refused_with_the_reason(value: bytes, reason: str) -> None:
    with pytest.raises(MalformedMetadataError, match=reason) as caught:
        read(value)
    assert "ledger 4711" in str(caught.value)


def with_fragments(*starts: int) -> bytes:
    made = message()
    made.ClearField("segment")
    for start in starts:
        made.segment.add(firstEntryId=start, ensembleMember=["a:1", "b:1", "c:1"])
    return as_v3(made)


@pytest.mark.parametrize("starts", [(5,), (-1,), (0, 0), (0, 7, 7), (0, 9, 3), (0, -4)])
def test_fragments_out_of_order_are_refused(starts: tuple[int, ...]) -> None:
    with pytest.raises(MalformedMetadataError, match="fragment"):
        read(with_fragments(*starts))


def test_strings_that_are_not_utf8_are_refused() -> None:
    bad_bookie = delimited(message().SerializeToString().replace(b"b:1", b"\xff:1"))
    made = message()
    made.customMetadata.add(key="key", value=b"")
    bad_key = delimited(made.SerializeToString().replace(b"key", b"\xc3\x28y"))
    for value in (bad_bookie, bad_key):
        with pytest.raises(MalformedMetadataError, match="UTF-8"):
            read(value)


@every_row("cut", range(0, 200, 7))
def test_a_truncated_value_is_refused_wherever_it_ends(cut: int) -> None:
    value = encode(FULL)
    with pytest.raises(MalformedMetadataError):
        read(value[: min(cut, len(value) - 1)])


@pytest.mark.parametrize(
    "body",
    [b"\x32\x00" * 500_000, b"\x5a\x00" * 500_000, b"\x32\x04\x0a\x00\x10\x00" * 170_000],
    ids=["empty", "map", "segments"],
)
def test_a_megabyte_of_tiny_fields_is_refused_or_read_in_bounded_time(body: bytes) -> None:
    began = time.perf_counter()
    with pytest.raises(MalformedMetadataError):
        read(delimited(body[: VALUE_BYTES_MAX - 100]))
    assert time.perf_counter() - began < 10


@pytest.mark.parametrize(
    "change",
    [
        {"fragments": ()},
        {"last_entry_id": EntryId(-2)},
        {"length": -1},
        {"password": None},
        {"ledger_id": LedgerId(-1)},
        {"ack_quorum": 4},
        {"ctime_ms": -2},
        {"state": LedgerState.OPEN},  # Still with a last entry and a length.
    ],
)
def test_metadata_that_makes_no_sense_cannot_be_made(change: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"."):
        replace(FULL, **change)
