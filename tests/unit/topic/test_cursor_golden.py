"""Against bytes that Apache Pulsar 4.2.4 made (tests/golden/PulsarCursors.java): read by us, and written the same."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import (
    cursor_properties,
    decode_node,
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
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo, PositionInfo

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "pulsar-cursors.json").read_text())
LONG = {"producer": 2**40}
RUNS = [
    (Position(1, 5), Position(1, 6)),
    (Position(2, 0), Position(2, 0)),
    (Position(2, 63), Position(2, 64)),
    (Position(3, 0), Position(3, 129)),
]
LEFT = (1 << 70) - 1 - 2


def golden(name: str) -> bytes:
    return bytes.fromhex(GOLDEN[name])


def chain() -> LedgerChain:
    chain = LedgerChain()
    for ledger_id, entries in ((1, 10), (2, 100), (3, 200)):
        chain.begin(ledger_id)
        chain.grow(entries, entries)
    return chain


def state() -> AckState:
    acks = AckState(chain(), Position(1, 2))
    for first, last in RUNS:
        acks.acknowledge([Position(first.ledger_id, entry) for entry in range(first.entry_id, last.entry_id + 1)])
    acks.acknowledge_batch(Position(1, 8), [LEFT & (2**64 - 1), LEFT >> 64], 70)
    return acks


def check(info: PositionInfo) -> None:
    acks = restore_acks(info, chain())
    assert (acks.mark_delete, list(acks.ranges())) == (Position(1, 2), RUNS)
    assert acks.batches == {Position(1, 8): LEFT}
    assert long_properties(info) == LONG


@pytest.mark.parametrize("name", ["entry with bitmaps", "entry with runs"])
def test_an_entry_of_apaches_cursor_ledger_is_read(name: str) -> None:
    check(state_in_entry(golden(name)))


def test_a_position_before_a_ledger_is_read_and_written() -> None:
    info = state_in_entry(golden("entry without gaps"))
    assert (info.ledger_id, info.entry_id) == (7, -1)
    later = LedgerChain()
    later.begin(7)
    snapshot = take_snapshot(restore_acks(info, later), {}, CursorConfig())
    assert snapshot.info.SerializeToString() == golden("entry without gaps")


def test_a_node_of_apaches_is_read() -> None:
    node = decode_node(golden("node with the state"))
    assert (node.cursors_ledger_id, cursor_properties(node)) == (-1, {"team": "blue"})
    check(state_in_node(node))
    other = decode_node(golden("node with a ledger"))
    assert (other.cursors_ledger_id, state_in_node(other).entry_id) == (55, 2)


def test_an_entry_with_runs_has_the_same_bytes() -> None:
    snapshot = take_snapshot(state(), LONG, CursorConfig(ranges_as_bitmaps=False))
    assert snapshot.info.SerializeToString() == golden("entry with runs")


def test_an_entry_with_bitmaps_has_the_same_bytes_but_for_words_of_zeros_at_the_end() -> None:
    apaches = PositionInfo.FromString(golden("entry with bitmaps"))
    for bitmap in apaches.individual_deleted_message_ranges:
        while bitmap.values and bitmap.values[-1] == 0:
            bitmap.values.pop()
    ours = take_snapshot(state(), LONG, CursorConfig()).info.SerializeToString()
    assert ours == apaches.SerializeToString()
    assert GOLDEN[f"read from {ours.hex()}"] == GOLDEN["read from Pulsar's"]


@pytest.mark.parametrize("as_bitmaps", [True, False])
def test_nodes_have_the_same_bytes(as_bitmaps: bool) -> None:
    known = node_with_properties(
        ManagedCursorInfo(cursors_ledger_id=1, last_active=1_700_000_000_000), {"team": "blue"}
    )
    snapshot = take_snapshot(state(), LONG, CursorConfig(ranges_as_bitmaps=as_bitmaps))
    assert node_for_ledger(known, snapshot, 55).SerializeToString() == golden("node with a ledger")
    assert node_with_state(known, snapshot).SerializeToString() == golden("node with the state")
