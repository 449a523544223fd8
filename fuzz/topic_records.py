"""The decoders of what topics store: their nodes, entries of compacted ledgers, and batches as compaction reads them.

Checked:   besides that nothing but the promised errors comes out: a node that was read is the same after a round, and
           what compaction leaves of a batch is a batch with exactly the messages that it kept.
"""

from __future__ import annotations

import struct
import zlib

from fuzz.engine import Target
from magnetar.errors import MalformedEntryError, MalformedMetadataError, MissingDependencyError
from magnetar.topic.entry_format.messages import decode_compacted, encode_compacted, filtered_batch, keys_of
from magnetar.topic.log.managed_ledger import decode_managed_ledger, encode_managed_ledger
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.topic.proto.managed_ledger_pb2 import ZLIB, InfoMetadata, ManagedLedgerInfo
from magnetar.wire.pulsar.entry import broker_entry_header, encode_batched_message
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata, SingleMessageMetadata

_PLACE = Position(7, 300)


def targets() -> list[Target]:
    node, entry = _node(), _batch()
    return [
        Target("topic-node", [node, _compressed(node)], _read_node, (MalformedMetadataError, MissingDependencyError)),
        Target("compacted-entry", [encode_compacted(_PLACE, entry)], _read_compacted, (MalformedEntryError,)),
        Target("compacted-batch", [entry], _compact, (MalformedEntryError, MissingDependencyError)),
    ]


def _node() -> bytes:
    message = ManagedLedgerInfo()
    message.ledger_info.add(ledger_id=5, entries=2, size=100, timestamp=7).properties.add(key="k", value="v")
    message.ledger_info.add(ledger_id=9, timestamp=0)
    message.terminated_position.ledger_id, message.terminated_position.entry_id = 5, 1
    message.properties.add(key="index", value="1")
    return message.SerializeToString()


def _compressed(node: bytes) -> bytes:
    head = InfoMetadata(compression_type=ZLIB, uncompressed_size=len(node)).SerializeToString()
    return struct.pack(">Hi", 0x4778, len(head)) + head + zlib.compress(node)


def _batch() -> bytes:
    singles = [SingleMessageMetadata(partition_key=key) for key in ("a", "b", "a")]
    payload = b"".join(encode_batched_message(single, b"payload") for single in singles)
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=2, num_messages_in_batch=3)
    metadata.uncompressed_size = len(payload)
    return broker_entry_header(41, 1_700_000_000_000) + with_checksum(metadata.SerializeToString(), payload)


def _read_node(data: bytes) -> object:
    info = decode_managed_ledger(data)
    again = decode_managed_ledger(encode_managed_ledger(info))
    assert (again.properties, again.terminated) == (info.properties, info.terminated), "another topic after a round"
    assert [span.ledger_id for span in again.spans] == [span.ledger_id for span in info.spans], "other ledgers"
    return info


def _read_compacted(data: bytes) -> object:
    entry = decode_compacted(data)
    again = decode_compacted(encode_compacted(entry.position, entry.data))
    assert (again.position, again.data) == (entry.position, entry.data), "another entry after a round"
    return entry


def _compact(data: bytes) -> object:
    entry = LogEntry(_PLACE, data)
    keys = keys_of(entry)
    if entry.head.is_readable_batch:
        wanted = {index for index, _, _ in keys if index % 2 == 0}
        kept = filtered_batch(entry, lambda index, _key: index in wanted)
        found = [] if kept is None else [index for index, _, _ in keys_of(LogEntry(_PLACE, kept))]
        assert found == sorted(wanted), "other messages than were kept"
    return keys
