"""A topic and a cursor that Pulsar's managed ledger wrote on a bookie (tests/golden/PulsarManagedLedger.java)."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.ledger_codec import decode
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.topic.chain import LedgerChain
from magnetar.topic.cursor.acks import AckState
from magnetar.topic.cursor.codec import (
    cursor_properties,
    decode_node,
    encode_cursor_name,
    long_properties,
    node_for_ledger,
    node_with_state,
    restore_acks,
    state_in_entry,
    state_in_node,
    take_snapshot,
)
from magnetar.topic.log.ledger_roller import ledger_description
from magnetar.topic.log.managed_ledger import decode_managed_ledger, encode_managed_ledger, managed_ledger_path
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import PositionInfo
from magnetar.wire.bookkeeper.digests import DigestType

GOLDEN = json.loads((Path(__file__).parents[2] / "golden" / "pulsar-managed-ledger.json").read_text())
NAME = "public/default/persistent/golden"
TOPIC = managed_ledger_path(NAME)
CURSOR = f"{TOPIC}/{encode_cursor_name('a b')}"
LAST_ENTRY = bytes.fromhex(GOLDEN["last entry"])
BOTH = pytest.mark.parametrize("state", ["open", "closed"])
RUNS = [
    (Position(0, 5), Position(0, 6)),
    (Position(0, 69), Position(0, 69)),
    (Position(1, 0), Position(1, 1)),
    (Position(1, 10), Position(1, 10)),
]
LEFT = (1 << 70) - 1 - 2


def node(state: str, path: str) -> bytes:
    return bytes.fromhex(GOLDEN[state][path])


def ledger(state: str, ledger_id: int) -> LedgerMetadata:
    path = BookKeeperPaths().ledger(LedgerId(ledger_id))
    return decode(LedgerId(ledger_id), node(state, path), node_created_ms=0)


def chain() -> LedgerChain:
    """As the next owner has it: Pulsar does not count the last ledger in the node."""
    chain = LedgerChain(decode_managed_ledger(node("closed", TOPIC)).spans)
    chain.grow(30, 300)
    return chain


def acks() -> AckState:
    return restore_acks(state_in_entry(LAST_ENTRY), chain())


@BOTH
def test_the_topics_node_is_read_and_written_back_in_the_same_bytes(state: str) -> None:
    stored = node(state, TOPIC)
    found = decode_managed_ledger(stored)
    assert [(span.ledger_id, span.entries, span.closed_ms > 0) for span in found.spans] == [
        (0, 70, True),
        (1, 0, False),
    ]
    assert found.properties == {"pulsar.topic.epoch": "3"}
    assert encode_managed_ledger(found) == stored


def test_the_cursors_ledger_and_its_node_after_a_clean_close_hold_the_same_state() -> None:
    for info in (state_in_entry(LAST_ENTRY), state_in_node(decode_node(node("closed", CURSOR)))):
        found = restore_acks(info, chain())
        assert (found.mark_delete, list(found.ranges())) == (Position(0, 2), RUNS)
        assert found.batches == {Position(0, 8): LEFT}
        assert long_properties(info) == {"producer": 2**40}


def test_the_entry_that_we_write_for_this_state_is_pulsars_but_for_words_of_zeros() -> None:
    apaches = PositionInfo.FromString(LAST_ENTRY)
    for bitmap in apaches.individual_deleted_message_ranges:
        while bitmap.values[-1] == 0:
            bitmap.values.pop()
    snapshot = take_snapshot(acks(), {"producer": 2**40}, CursorConfig())
    assert snapshot.info.SerializeToString() == apaches.SerializeToString()


def test_the_cursors_node_while_it_is_open_names_its_ledger() -> None:
    stored = node("open", CURSOR)
    found = decode_node(stored)
    assert found.cursors_ledger_id == GOLDEN["cursor ledger"]
    assert cursor_properties(found) == {"team": "blue"}
    older = take_snapshot(restore_acks(state_in_node(found), chain()), {}, CursorConfig())
    assert node_for_ledger(found, older, GOLDEN["cursor ledger"]).SerializeToString() == stored


def test_the_cursors_node_after_a_clean_close_has_the_same_bytes() -> None:
    snapshot = take_snapshot(acks(), {"producer": 2**40}, CursorConfig())
    again = node_with_state(decode_node(node("open", CURSOR)), snapshot)
    assert again.SerializeToString() == node("closed", CURSOR)


def test_the_ledgers_of_the_topic_and_the_cursor_are_described_and_sealed_as_ours() -> None:
    cursor = {"pulsar/cursor": encode_cursor_name("a b").encode()}
    for ledger_id, more in ((0, {}), (1, {}), (GOLDEN["cursor ledger"], cursor)):
        found = ledger("open", ledger_id)
        assert dict(found.custom_metadata) == ledger_description(NAME) | more
        assert (found.digest_type, found.password) == (DigestType.CRC32C, b"")
    assert [ledger("closed", ledger_id).last_entry_id for ledger_id in (0, 1)] == [69, 29]
