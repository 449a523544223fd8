"""What is read from `__change_events`, entry by entry."""

from __future__ import annotations

from magnetar.broker.topics.change_events import events_of
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CompressionType, MessageMetadata
from tests.unit.wire.pulsar.samples import spoiled


def entry(payload: bytes, key: str = "k", **fields: int) -> LogEntry:
    metadata = MessageMetadata(producer_name="p", sequence_id=0, publish_time=1, partition_key=key, **fields)
    return LogEntry(Position(7, 3), with_checksum(metadata.SerializeToString(), payload))


def test_an_event_says_where_it_is() -> None:
    (event,) = events_of(entry(b"what changed"), 2)
    assert (event.key, event.payload, event.position) == ("k", b"what changed", (2, 7, 3))


def test_a_key_that_is_not_utf_8_is_text_all_the_same() -> None:
    (event,) = events_of(LogEntry(Position(7, 3), spoiled(bytes(entry(b"", "KKKK").data))), 0)
    assert (event.key, event.payload) == ("\ufffd\ufffd\ufffdk", None)


def test_an_entry_that_cannot_be_unpacked_is_skipped() -> None:
    """Any client that may publish there could otherwise keep all topics of the namespace from being loaded."""
    assert events_of(entry(b"not compressed", compression=CompressionType.ZLIB, uncompressed_size=100), 0) == []
    assert events_of(entry(b"no batch", num_messages_in_batch=3), 0) == []
    assert events_of(LogEntry(Position(7, 3), b"not a message at all"), 0) == []
