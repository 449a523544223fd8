"""Topics' and cursors' nodes that Pulsar 4.2.4 wrote (tests/golden/PulsarNodes.java), plain and compressed."""

from __future__ import annotations

from dataclasses import replace

import pytest

from magnetar.config.topic import CursorConfig
from magnetar.topic.chain import LedgerChain, LedgerSpan
from magnetar.topic.cursor.codec import (
    decode_node,
    encode_cursor_name,
    node_with_state,
    restore_acks,
    state_in_node,
    take_snapshot,
)
from magnetar.topic.log.managed_ledger import (
    ManagedLedger,
    decode_managed_ledger,
    encode_managed_ledger,
    is_offloaded,
    managed_ledger_path,
)
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import ManagedCursorInfo
from tests.unit.broker import golden

NAME = "public/default/persistent/plain"
KINDS = ["NONE", "LZ4", "ZLIB", "ZSTD", "SNAPPY"]


def value(name: str) -> bytes:
    return bytes.fromhex(golden.nodes()["values"][name])


def needs_library(kind: str) -> None:
    if kind not in ("NONE", "ZLIB"):
        pytest.importorskip("cramjam")


def test_a_topics_node_that_pulsar_wrote_is_read() -> None:
    found = decode_managed_ledger(golden.node(managed_ledger_path(NAME)))
    assert [(span.ledger_id, span.entries, span.size_bytes, span.closed_ms) for span in found.spans] == [
        (12, 10, 1_000, 1_700_000_000_000),
        (13, 20, 2_000, 1_700_000_000_001),
        (14, 0, 0, 0),
    ]
    assert [is_offloaded(span) for span in found.spans] == [False, True, False]
    assert found.properties == {"index": "29", "pulsar.topic.epoch": "3"}
    assert found.terminated is None


def test_a_topics_node_is_written_back_in_the_same_bytes() -> None:
    for stored in (golden.node(managed_ledger_path(NAME)), value("topic terminated")):
        assert encode_managed_ledger(decode_managed_ledger(stored)) == stored


def test_a_new_topics_node_has_the_bytes_of_pulsar() -> None:
    apaches = decode_managed_ledger(value("topic terminated"))
    assert apaches.terminated == Position(12, 9)
    ours = ManagedLedger((LedgerSpan(12, 10, 1_000, 1_700_000_000_000),), {}, Position(12, 9))
    assert encode_managed_ledger(ours) == value("topic terminated")


def test_what_pulsar_stored_of_an_offloaded_ledger_survives_a_change_of_ours() -> None:
    stored = golden.node(managed_ledger_path(NAME))
    found = decode_managed_ledger(stored)
    changed = replace(found, spans=(*found.spans, LedgerSpan(15)), properties={**found.properties, "index": "30"})
    again = decode_managed_ledger(encode_managed_ledger(changed))
    assert [span.kept for span in again.spans[:3]] == [span.kept for span in found.spans]
    assert again.properties == {"index": "30", "pulsar.topic.epoch": "3"}


def test_the_node_of_a_topic_that_pulsar_just_created_is_empty_and_is_read() -> None:
    assert golden.node(managed_ledger_path("public/default/persistent/many-partition-7")) == b""
    assert decode_managed_ledger(b"") == ManagedLedger()


@pytest.mark.parametrize("kind", KINDS)
def test_a_topics_node_that_pulsar_compressed_is_read_and_written_plain(kind: str) -> None:
    needs_library(kind)
    assert encode_managed_ledger(decode_managed_ledger(value(f"topic {kind}"))) == value("topic NONE")


@pytest.mark.parametrize("kind", KINDS)
def test_a_cursors_node_that_pulsar_compressed_is_read(kind: str) -> None:
    needs_library(kind)
    assert decode_node(value(f"cursor {kind}")) == decode_node(value("cursor NONE"))


def test_a_cursors_node_is_where_pulsar_has_it_in_the_same_bytes() -> None:
    path = f"{managed_ledger_path(NAME)}/{encode_cursor_name(golden.nodes()['subscription'])}"
    stored = golden.node(path)
    chain = LedgerChain([LedgerSpan(12, 10, 1_000, 1)])
    acks = restore_acks(state_in_node(decode_node(stored)), chain)
    assert (acks.mark_delete, list(acks.ranges())) == (Position(12, 3), [(Position(12, 6), Position(12, 7))])
    node = node_with_state(
        ManagedCursorInfo(cursors_ledger_id=1, last_active=1_700_000_000_000), take_snapshot(acks, {}, CursorConfig())
    )
    assert node.SerializeToString() == stored
