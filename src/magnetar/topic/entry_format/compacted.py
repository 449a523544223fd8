"""The stored form of a compacted ledger's entries.

Format:    id_size i32 | MessageIdData | size i32 | the entry as it was in the topic. The id is its position there, so
           positions of a compacted topic are those of the topic.
"""

from __future__ import annotations

import struct

from google.protobuf.message import DecodeError

from magnetar.errors import MalformedEntryError
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageIdData

_SIZE = struct.Struct(">i")


def encode_compacted(position: Position, data: Buffer) -> bytes:
    head = encode_message_id(position)
    return b"".join((_SIZE.pack(len(head)), head, _SIZE.pack(len(data)), data))


def decode_compacted(stored: Buffer) -> LogEntry:
    view = memoryview(stored)
    head, offset = _sized(view, 0)
    data, _ = _sized(view, offset)
    try:
        position = MessageIdData.FromString(head)  # type: ignore[arg-type]
    except DecodeError as error:
        raise MalformedEntryError(f"an entry of a compacted ledger has no readable position: {error}") from None
    if not position.IsInitialized():
        raise MalformedEntryError("an entry of a compacted ledger has no position: no ledger or no entry")
    return LogEntry(Position(position.ledgerId, position.entryId), data)


def encode_message_id(position: Position) -> bytes:
    return MessageIdData(ledgerId=position.ledger_id, entryId=position.entry_id).SerializeToString()


def _sized(view: memoryview, offset: int) -> tuple[memoryview, int]:
    start = offset + _SIZE.size
    if start > len(view):
        raise MalformedEntryError(f"an entry of a compacted ledger ends at byte {len(view)}")
    end = start + int(_SIZE.unpack_from(view, offset)[0])
    if not start <= end <= len(view):
        raise MalformedEntryError(f"an entry of a compacted ledger of {len(view)} bytes has a part up to byte {end}")
    return view[start:end], end
