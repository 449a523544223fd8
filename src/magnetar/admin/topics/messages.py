"""Single messages: peeking, examining, finding their ids, and their form as HTTP.

Format:    A message's payload is the body; everything else is in headers with Pulsar's names. A batch is sent as it is
           stored, uncompressed: clients split it if `X-Pulsar-num-batch-message` is present. Message ids and positions
           have Pulsar's JSON.
"""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

from magnetar.admin.http.call import TOPIC, Call, Query, Reply, Route
from magnetar.admin.http.errors import BAD_REQUEST, NOT_FOUND, PRECONDITION_FAILED, UNPROCESSABLE, RestError
from magnetar.admin.stats.rates import iso
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.errors import MalformedEntryError
from magnetar.topic.entry_format.kafka import in_pulsar_form
from magnetar.topic.log_entry import LogEntry
from magnetar.topic.position import EARLIEST, LATEST, Position
from magnetar.wire.compression import decompress
from magnetar.wire.pulsar.entry import EntryHead, parse_entry
from magnetar.wire.pulsar.frames import text_of
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import CompressionType, MessageMetadata

_LONG_MAX = 2**63 - 1


def message_id_json(
    position: Position, partition: int = -1, batch_index: int = -1, batch_size: int = 0
) -> dict[str, Any]:
    return {
        "ledgerId": position.ledger_id,
        "entryId": position.entry_id,
        "partitionIndex": partition,
        "batchIndex": batch_index,
        "batchSize": batch_size,
    }


@dataclass(frozen=True, slots=True)
class GivenPlace:
    """Is what a request's body names: a message id, whether to begin after it, and properties of a subscription."""

    position: Position
    batch_index: int = -1
    partition: int | None = None
    """None if the request does not name one."""
    is_excluded: bool = False
    properties: dict[str, str] = field(default_factory=dict)


def given_place(call: Call) -> GivenPlace:
    """Reads the body, which may also be "earliest" or "latest"; latest without a body."""
    body = call.json()
    if body is None:
        return GivenPlace(LATEST)
    if isinstance(body, str):
        return GivenPlace(_named(body))
    if not isinstance(body, dict):
        raise RestError(BAD_REQUEST, "the body must be a message id: an object with ledgerId and entryId")
    properties = body.get("properties") or {}
    if not isinstance(properties, dict):
        raise RestError(BAD_REQUEST, "properties must be an object of strings")
    return GivenPlace(
        _clamped(Position(_number(body, "ledgerId"), _number(body, "entryId"))),
        _number(body, "batchIndex", -1),
        _number(body, "partitionIndex") if "partitionIndex" in body else None,
        bool(body.get("isExcluded") or body.get("excluded")),
        {str(name): str(value) for name, value in properties.items()},
    )


def _named(text: str) -> Position:
    known = {"earliest": EARLIEST, "latest": LATEST}
    if text in known:
        return known[text]
    ledger, _, entry = text.partition(":")
    try:
        return Position(int(ledger), int(entry))
    except ValueError:
        raise RestError(BAD_REQUEST, f"{text!r} is not earliest, latest or ledger:entry") from None


def _clamped(position: Position) -> Position:
    if position.ledger_id < 0:
        return EARLIEST
    return LATEST if position.ledger_id == _LONG_MAX else position


def _number(body: dict[str, Any], name: str, default: int | None = None) -> int:
    found = body.get(name, default)
    if isinstance(found, bool) or not isinstance(found, int):
        raise RestError(BAD_REQUEST, f"{name} must be an integer, not {found!r}")
    return found


# --- a message as HTTP ------------------------------------------------------------------------------------------------

_PAYLOAD_BYTES_MAX = 128 * 2**20
_TIMES = ("publish_time", "event_time", "deliver_at_time")
_PLAIN = (
    *("null_value", "producer_name", "sequence_id", "replicated_from", "partition_key", "uncompressed_size"),
    *("encryption_algo", "partition_key_b64_encoded", "marker_type", "txnid_least_bits", "txnid_most_bits"),
    *("highest_sequence_id", "uuid", "num_chunks_from_msg", "total_chunk_msg_size", "chunk_id", "null_partition_key"),
)
_BINARY = ("encryption_param", "schema_version", "ordering_key")


def message_reply(entry: LogEntry) -> Reply:
    data = in_pulsar_form(entry.data, _PAYLOAD_BYTES_MAX)
    head = parse_entry(data)
    metadata = head.metadata
    payload = bytes(memoryview(data)[head.payload_offset :])
    headers = {f"X-Pulsar-{name}": _safe(value) for name, value in _headers(entry, head)}
    return Reply(_plain_payload(metadata, payload), "application/octet-stream", headers=headers)


def _headers(entry: LogEntry, head: EntryHead) -> Iterator[tuple[str, Any]]:
    metadata = head.metadata
    yield "Message-ID", f"{entry.position.ledger_id}:{entry.position.entry_id}"
    yield "PROPERTY", json.dumps({text_of(each.key): text_of(each.value) for each in metadata.properties})
    yield from _broker_headers(head)
    yield from _composition(entry, metadata)
    yield "Is-Encrypted", bool(metadata.encryption_keys)
    for key in metadata.encryption_keys:
        yield "Base64-encryption-keys", base64.b64encode(key.SerializeToString()).decode()
    for fields, prefix, shown in _FIELDS:
        for name in fields:
            if metadata.HasField(name):
                yield prefix + name.replace("_", "-"), shown(getattr(metadata, name))
    yield "txn-uncommitted", False


def _broker_headers(head: EntryHead) -> Iterator[tuple[str, Any]]:
    if head.broker_ms is not None:
        yield "Broker-Entry-METADATA-timestamp", iso(head.broker_ms)
    if head.index is not None:
        yield "Broker-Entry-METADATA-index", head.index


def _composition(entry: LogEntry, metadata: MessageMetadata) -> Iterator[tuple[str, Any]]:
    if metadata.HasField("num_messages_in_batch"):
        yield "num-batch-message", metadata.num_messages_in_batch
        yield "batch-size", len(entry.data) - metadata.ByteSize()
    if metadata.HasField("num_chunks_from_msg"):
        yield "PROPERTY-TOTAL-CHUNKS", metadata.num_chunks_from_msg
        yield "PROPERTY-CHUNK-ID", metadata.chunk_id


def _same(value: Any) -> Any:
    return text_of(value) if isinstance(value, bytes) else value


def _base64(value: bytes) -> str:
    return base64.b64encode(value).decode()


_FIELDS: tuple[tuple[Sequence[Any], str, Callable[[Any], Any]], ...] = (
    (_TIMES, "", iso),
    (_PLAIN, "", _same),
    (_BINARY, "Base64-", _base64),
    (("compression",), "", CompressionType.Name),
)
"""Fields of the metadata that are headers of the same name, with the prefix and the form of their values."""


def _safe(value: Any) -> str:
    """Makes the value one line of Latin characters, for a header."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    return "".join(each if " " <= each <= "~" else "?" for each in text)


def _plain_payload(metadata: MessageMetadata, payload: bytes) -> bytes:
    if metadata.encryption_keys or not metadata.compression:
        return payload
    try:
        return decompress(metadata.compression, payload, metadata.uncompressed_size, _PAYLOAD_BYTES_MAX)
    except MalformedEntryError as error:
        raise RestError(UNPROCESSABLE, f"the message cannot be decompressed: {error}") from None


async def peek(call: Call) -> Reply:
    topic, number = await call.persistent(), call.number("number")
    entry = await topic.subscriptions.require(call.name("subscription")).peek(max(1, number))
    if entry is None:
        raise RestError(NOT_FOUND, "Message not found")
    return message_reply(entry)


async def examine(call: Call) -> Reply:
    topic = await call.persistent()
    number, total = max(1, call.query_number("messagePosition", 1)), topic.log.chain.entries
    if not total:
        raise RestError(PRECONDITION_FAILED, "Could not examine messages: the topic has none")
    from_start = number if call.query.get("initialPosition") == "earliest" else total - number + 1
    return await _at(topic, topic.log.chain.position_after(EARLIEST, max(1, from_start)))


async def get_message(call: Call) -> Reply:
    topic = await call.persistent()
    return await _at(topic, Position(call.number("ledger"), call.number("entry")))


async def _at(topic: PersistentTopic, position: Position) -> Reply:
    if not topic.log.chain.contains(position):
        raise RestError(NOT_FOUND, "Message not found")
    entries = await topic.log.read(position, 1, 1)
    if not entries:
        raise RestError(NOT_FOUND, "Message not found")
    return message_reply(entries[0])


async def last_message_id(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    last = await topic.last_message()
    return message_id_json(last.position, topic.name.partition, last.batch_index, max(0, last.batch_index + 1))


async def id_at_time(call: Call) -> dict[str, Any] | None:
    topic = await call.persistent()
    position = await topic.log.position_at_time(call.number("timestamp"))
    if not topic.log.chain.contains(position):
        position = topic.log.last_confirmed
    return message_id_json(position, topic.name.partition)


async def id_at_index(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    index = call.query_number("index", -1)
    if not 0 <= index < topic.log.next_confirmed_index:
        raise RestError(NOT_FOUND, f"no message has the index {index}: the next index is {topic.log.next_index}")
    return message_id_json(await topic.log.position_at_index(index), topic.name.partition)


async def backlog_size(call: Call) -> int:
    """Returns the bytes from a message on."""
    topic, place = await call.persistent(), given_place(call)
    chain = topic.log.chain
    return chain.bytes_between(chain.previous_position(place.position), topic.log.last_confirmed)


async def backlog(call: Call) -> dict[str, Any]:
    topic = await call.persistent()
    cursors = {each.name: {"messageBacklog": each.cursor.backlog_entries()} for each in topic.subscriptions.values()}
    return {
        "storageSize": topic.log.chain.size_bytes,
        "totalMessages": topic.log.chain.entries,
        "messageBacklog": max((each["messageBacklog"] for each in cursors.values()), default=0),
        "topicName": str(topic.name),
        "cursorDetails": cursors,
    }


_ONE = f"/admin/v2/persistent/{TOPIC}"
_EXAMINED = (
    Query("initialPosition", "earliest or latest", "string"),
    Query("messagePosition", "the number of the message from there, from 1 on", "integer"),
)
_INDEX = (Query("index", "the index", "integer"),)
ROUTES = [
    Route(
        "GET",
        f"{_ONE}/subscription/{{subscription}}/position/{{number}}",
        "Get a message of the backlog, by its place in it",
        peek,
    ),
    Route("GET", f"{_ONE}/examinemessage", "Get a message by its place in the topic", examine, query=_EXAMINED),
    Route("GET", f"{_ONE}/ledger/{{ledger}}/entry/{{entry}}", "Get a message by its id", get_message),
    Route("GET", f"{_ONE}/lastMessageId", "Get the id of the last message", last_message_id),
    Route("GET", f"{_ONE}/messageid/{{timestamp}}", "Get the id of the first message published at a time", id_at_time),
    Route("GET", f"{_ONE}/getMessageIdByIndex", "Get the id of the message with an index", id_at_index, query=_INDEX),
    Route(
        "PUT", f"{_ONE}/backlogSize", "Get the size of the backlog from a message on", backlog_size, body="a message id"
    ),
    Route("GET", f"{_ONE}/backlog", "Get the backlog of all subscriptions", backlog),
]
