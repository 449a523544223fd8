"""Entries that Pulsar 4.2.4 made (tests/golden/PulsarEntries.java): read by us, and written in the same bytes."""

from __future__ import annotations

import pytest

from magnetar.broker.publishing.dedup import CURSOR_NAME
from magnetar.topic.compaction import COMPACTION_CURSOR, LEDGER_PROPERTY
from magnetar.topic.entry_format.head import EntryStamp, body_of, read_head
from magnetar.topic.entry_format.messages import (
    MessageKey,
    decode_compacted,
    encode_compacted,
    encode_message_id,
    filtered_batch,
    keys_of,
)
from magnetar.topic.entry_format.traits import traits_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import verify_checksum
from tests.unit.broker import golden

WHERE = Position(12, 3)
PLAIN = golden.entry("plain")
BATCH = golden.entry("plain batch")


def entry(name: str) -> LogEntry:
    return LogEntry(WHERE, golden.entry(name))


@pytest.mark.parametrize("index", [0, 127, 128, 1_000_000, 2**40 + 5])
def test_the_brokers_header_has_the_bytes_of_pulsars_interceptors(index: int) -> None:
    stored = golden.entry(f"time and index {index}")
    head = read_head(stored)
    assert (head.index, bytes(body_of(stored))) == (index, PLAIN)
    assert EntryStamp(lambda: head.broker_ms or 0).on(index, PLAIN) == stored


@pytest.mark.parametrize("index", [0, 127, 128, 1_000_000, 2**40 + 5])
def test_a_header_of_one_interceptor_alone_is_read(index: int) -> None:
    head = read_head(golden.entry(f"index {index}"))
    assert (head.index, head.broker_ms) == (index, None)
    timed = read_head(golden.entry("time alone"))
    assert timed.index is None
    assert timed.broker_ms


def test_the_index_of_a_batch_is_that_of_its_last_message() -> None:
    stored = golden.entry("first batch of a topic")
    head = read_head(stored)
    assert (head.index, head.messages) == (2, 3)
    assert EntryStamp(lambda: head.broker_ms or 0).on(head.messages - 1, BATCH) == stored


def test_an_entry_without_a_brokers_header_is_read() -> None:
    head = read_head(PLAIN)
    assert (head.index, head.broker_ms, head.producer, head.key, head.messages) == (None, None, "producer", "key", 1)
    assert read_head(BATCH).messages == 3


def test_a_compacted_message_has_the_bytes_of_pulsar() -> None:
    stored = golden.entry("compacted message")
    found = decode_compacted(stored)
    assert (found.position, bytes(found.data)) == (WHERE, PLAIN)
    assert encode_compacted(WHERE, PLAIN) == stored


def test_what_compaction_leaves_of_a_batch_has_the_bytes_of_pulsar() -> None:
    stored = golden.entry("compacted batch")
    left = filtered_batch(entry("plain batch"), lambda index, _: index > 0)
    assert left is not None
    assert encode_compacted(WHERE, left) == stored
    found = decode_compacted(stored)
    assert verify_checksum(found.data)
    assert keys_of(found) == [MessageKey(1, "b", 10), MessageKey(2, "a", 10)]


def test_pulsar_reads_the_position_that_compaction_notes_in_its_ledgers_metadata() -> None:
    assert golden.read_by_pulsar() == {encode_message_id(WHERE).hex(): str(WHERE)}


@pytest.mark.parametrize("name", ["marker of a commit", "marker of an abort", "marker of a snapshot"])
def test_markers_of_pulsars_brokers_are_recognised(name: str) -> None:
    traits = traits_of(entry(name))
    assert traits is not None
    assert traits.is_marker
    assert not read_head(golden.entry(name)).completes_message


def test_a_message_of_a_transaction_is_recognised() -> None:
    traits = traits_of(entry("transactional message"))
    assert traits is not None
    assert (traits.is_transactional, traits.is_marker) == (True, False)


def test_cursors_and_properties_of_brokers_have_pulsars_names() -> None:
    assert golden.names() == {
        "deduplication": CURSOR_NAME,
        "compaction": COMPACTION_CURSOR,
        "compacted ledger": LEDGER_PROPERTY,
    }
