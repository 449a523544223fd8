"""The stored forms of a cursor, as Pulsar 4.2 writes and reads them."""

from __future__ import annotations

import struct
import zlib

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.errors import MalformedMetadataError
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import (
    NO_LEDGER,
    cursor_properties,
    decode_cursor_name,
    decode_node,
    encode_cursor_name,
    long_properties,
    node_for_ledger,
    node_with_properties,
    node_with_state,
    restore_acks,
    state_in_entry,
    state_in_node,
    take_snapshot,
)
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import (
    CompressionType,
    InfoMetadata,
    ManagedCursorInfo,
    MessageRange,
    NestedPositionInfo,
    PositionInfo,
)

CONFIG = CursorConfig()
RUNS = CursorConfig(ranges_as_bitmaps=False)


def chain_of(*entries: int) -> LedgerChain:
    chain = LedgerChain()
    for ledger_id, count in enumerate(entries, 1):
        chain.begin(ledger_id)
        chain.grow(count, count)
    return chain


def acks_with_gaps() -> AckState:
    acks = AckState(chain_of(10, 100), Position(1, 2))
    acks.acknowledge([Position(1, 5), Position(1, 6), Position(2, 0), Position(2, 63), Position(2, 64)])
    acks.acknowledge_batch(Position(1, 8), [0b101], 4)
    return acks


def stored_run(lower: tuple[int, int], upper: tuple[int, int]) -> MessageRange:
    return MessageRange(
        lower_endpoint=NestedPositionInfo(ledger_id=lower[0], entry_id=lower[1]),
        upper_endpoint=NestedPositionInfo(ledger_id=upper[0], entry_id=upper[1]),
    )


def test_an_entry_of_a_cursor_ledger_has_these_bytes() -> None:
    """Written out by hand from the field numbers: position, then field 4 (properties), 5 (batches) and 6 (bitmaps)."""
    info = take_snapshot(acks_with_gaps(), {"p": 7}, CONFIG).info
    bitmap_1 = bytes.fromhex("08 01 10 60")  # Key 1; word 0: bits 5 and 6.
    sign_bit_and_bit_0 = bytes.fromhex("10 81 80 80 80 80 80 80 80 80 01")
    bitmap_2 = bytes.fromhex("08 02") + sign_bit_and_bit_0 + bytes.fromhex("10 01")
    batch = bytes.fromhex("0a 04 08 01 10 08 10 05")
    expected = (
        bytes.fromhex("08 01 10 02")
        + bytes.fromhex("22 05 0a 01 70 10 07")
        + b"\x2a" + bytes([len(batch)]) + batch
        + b"\x32" + bytes([len(bitmap_1)]) + bitmap_1
        + b"\x32" + bytes([len(bitmap_2)]) + bitmap_2
    )  # fmt: skip
    assert info.SerializeToString() == expected


def test_runs_are_open_below_and_within_one_ledger() -> None:
    info = take_snapshot(acks_with_gaps(), {}, RUNS).info
    assert [str(run).split() for run in info.individual_deleted_messages] == [
        str(stored_run((1, 4), (1, 6))).split(),
        str(stored_run((2, -1), (2, 0))).split(),
        str(stored_run((2, 62), (2, 64))).split(),
    ]
    assert not info.individual_deleted_message_ranges


@pytest.mark.parametrize("config", [CONFIG, RUNS], ids=["bitmaps", "runs"])
def test_a_stored_state_is_restored(config: CursorConfig) -> None:
    before = acks_with_gaps()
    info = state_in_entry(take_snapshot(before, {"producer": 2**40}, config).info.SerializeToString())
    after = restore_acks(info, chain_of(10, 100))
    assert (after.mark_delete, list(after.ranges())) == (before.mark_delete, list(before.ranges()))
    assert after.batches == before.batches
    assert long_properties(info) == {"producer": 2**40}


def test_both_kinds_of_runs_in_one_entry_count() -> None:
    info = PositionInfo(ledger_id=1, entry_id=-1)
    info.individual_deleted_messages.append(stored_run((1, 3), (1, 5)))
    info.individual_deleted_message_ranges.add(key=2, values=[0b110])
    acks = restore_acks(info, chain_of(10, 10))
    assert list(acks.ranges()) == [(Position(1, 4), Position(1, 5)), (Position(2, 1), Position(2, 2))]


def test_a_run_over_several_ledgers_is_split() -> None:
    info = PositionInfo(ledger_id=1, entry_id=2)
    info.individual_deleted_messages.append(stored_run((1, 6), (3, 1)))
    acks = restore_acks(info, chain_of(10, 5, 10))
    assert list(acks.ranges()) == [
        (Position(1, 7), Position(1, 9)),
        (Position(2, 0), Position(2, 4)),
        (Position(3, 0), Position(3, 1)),
    ]


def test_what_is_not_in_the_log_any_more_is_left_out() -> None:
    info = PositionInfo(ledger_id=1, entry_id=2)
    info.individual_deleted_messages.append(stored_run((77, -1), (77, 2**40)))
    info.individual_deleted_messages.append(stored_run((1, 5), (1, 2**40)))
    info.individual_deleted_message_ranges.add(key=78, values=[-1] * 50)
    info.batched_entry_deletion_index_info.add(delete_set=[1]).position.CopyFrom(
        NestedPositionInfo(ledger_id=1, entry_id=44)
    )
    acks = restore_acks(info, chain_of(10))
    assert (list(acks.ranges()), acks.batches) == ([(Position(1, 6), Position(1, 9))], {})


def test_a_position_behind_the_log_is_its_last_entry() -> None:
    assert restore_acks(PositionInfo(ledger_id=9, entry_id=4), chain_of(10)).mark_delete == Position(1, 9)


def test_a_node_that_points_to_a_ledger_has_the_position_and_no_runs() -> None:
    snapshot = take_snapshot(acks_with_gaps(), {"p": 7}, CONFIG)
    node = node_for_ledger(ManagedCursorInfo(cursors_ledger_id=NO_LEDGER), snapshot, 55)
    assert (node.cursors_ledger_id, node.mark_delete_ledger_id, node.mark_delete_entry_id) == (55, 1, 2)
    assert not node.individual_deleted_messages
    assert not node.batched_entry_deletion_index_info
    assert long_properties(state_in_node(node)) == {"p": 7}


@pytest.mark.parametrize("config", [CONFIG, RUNS], ids=["bitmaps", "runs"])
def test_a_node_with_the_state_names_no_ledger_and_has_runs(config: CursorConfig) -> None:
    before = acks_with_gaps()
    node = node_with_state(ManagedCursorInfo(cursors_ledger_id=55), take_snapshot(before, {}, config))
    assert node.cursors_ledger_id == -1
    assert len(node.individual_deleted_messages) == 3
    after = restore_acks(state_in_node(decode_node(node.SerializeToString())), chain_of(10, 100))
    assert (list(after.ranges()), after.batches) == (list(before.ranges()), before.batches)


def test_properties_and_unknown_fields_of_a_node_survive_every_rewrite() -> None:
    unknown = bytes.fromhex("fa 07 03 61 62 63")  # Field 127, "abc".
    stored = ManagedCursorInfo(cursors_ledger_id=55, mark_delete_ledger_id=1, mark_delete_entry_id=0, last_active=99)
    stored.cursor_properties.add(name="team", value="blue")
    node = decode_node(stored.SerializeToString() + unknown)
    snapshot = take_snapshot(acks_with_gaps(), {}, CONFIG)
    for rewritten in (node_for_ledger(node, snapshot, 56), node_with_state(node, snapshot)):
        again = decode_node(rewritten.SerializeToString())
        assert cursor_properties(again) == {"team": "blue"}
        assert again.last_active == 99
        assert unknown in again.SerializeToString()
    changed = node_with_properties(node, {"team": "red"})
    assert (cursor_properties(changed), changed.cursors_ledger_id) == ({"team": "red"}, 55)


def test_a_compressed_node_is_read() -> None:
    plain = ManagedCursorInfo(cursors_ledger_id=-1, mark_delete_ledger_id=3, mark_delete_entry_id=4)
    body = plain.SerializeToString()
    head = InfoMetadata(compression_type=CompressionType.ZLIB, uncompressed_size=len(body)).SerializeToString()
    value = struct.pack(">Hi", 0x4778, len(head)) + head + zlib.compress(body)
    assert decode_node(value) == plain


@pytest.mark.parametrize("value", [b"", b"\x08", b"\x08\xff\xff\xff\xff\xff\xff\xff\xff\xff\x01", b"\xff" * 20])
def test_a_node_that_is_none_is_refused(value: bytes) -> None:
    with pytest.raises(MalformedMetadataError):
        decode_node(value)


def test_a_node_that_names_a_ledger_and_no_position_means_the_beginning() -> None:
    node = decode_node(ManagedCursorInfo(cursors_ledger_id=5).SerializeToString())
    assert restore_acks(state_in_node(node), chain_of(3)).backlog_entries() == 3


def test_more_runs_than_are_stored_are_delivered_again() -> None:
    acks = AckState(chain_of(100), Position(1, -1))
    acks.acknowledge([Position(1, entry) for entry in range(1, 100, 2)])
    config = CursorConfig(ranges_as_bitmaps=False, ranges_stored_max=10, ranges_in_metadata_max=10)
    snapshot = take_snapshot(acks, {}, config)
    assert snapshot.gaps == 50
    assert len(snapshot.info.individual_deleted_messages) == 10


def test_more_partial_batches_than_are_stored_are_delivered_again() -> None:
    acks = AckState(chain_of(100), Position(1, -1))
    for entry in reversed(range(20)):
        acks.acknowledge_batch(Position(1, entry), [1], 2)
    stored = take_snapshot(acks, {}, CursorConfig(batches_stored_max=5)).info.batched_entry_deletion_index_info
    assert [batch.position.entry_id for batch in stored] == [0, 1, 2, 3, 4]


@pytest.mark.parametrize(
    ("name", "encoded"),
    [
        ("sub", "sub"),
        ("a b/c", "a+b%2Fc"),
        ("x.y-z_*", "x.y-z_*"),
        ("~", "%7E"),
        ("pulsar.repl.München", "pulsar.repl.M%C3%BCnchen"),
        ("1+1%", "1%2B1%25"),
    ],
)
def test_names_are_encoded_as_java_does(name: str, encoded: str) -> None:
    assert encode_cursor_name(name) == encoded
    assert decode_cursor_name(encoded) == name
