"""The decoders of Kafka's protocol: frames, requests and answers of every version, batches, records, compressions.

Checked:   besides that nothing but the promised errors comes out: a request that was decoded can be encoded and is read
           as the same again; records stay within the limit of their batch; an entry that was converted for the other
           protocol can be read there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

from fuzz.engine import Target
from magnetar.errors import KafkaRefusedError, MalformedEntryError, RemoteProtocolError
from magnetar.topic.entry_format import kafka
from magnetar.topic.entry_format.head import EntryStamp, read_head
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.kafka import admin_tables, cluster_tables, group_tables, tables
from magnetar.wire.kafka.batches import Header, Record, check, encode_batch, records_of
from magnetar.wire.kafka.batches import read_head as read_batch_head
from magnetar.wire.kafka.codec import Api, Reader
from magnetar.wire.kafka.compression import Codec, compress, decompress
from magnetar.wire.kafka.frames import encode_request, finish_request_head, frame_end, read_request_head
from magnetar.wire.pulsar.entry import messages_of_batch

_FRAME_BYTES_MAX = 4_096
_CONTENT_BYTES_MAX = 20_000
_APIS = {
    api.key: api
    for module in (tables, group_tables, admin_tables, cluster_tables)
    for api in vars(module).values()
    if isinstance(api, Api) and not api.name.endswith("record")
}
_RECORDS = [
    Record(0, 1_700_000_000_000, b"key", b"value", [Header("a", b"\xff"), Header("n", None)]),
    Record(1, 1_700_000_000_005, None, None),
    Record(2, 5, b"", b"x" * 300),
]
_REQUESTS: dict[Api, dict[str, Any]] = {
    tables.PRODUCE: {
        "acks": -1,
        "topic_data": [{"name": "t", "partition_data": [{"index": 0, "records": [encode_batch(_RECORDS)]}]}],
    },
    tables.FETCH: {"topics": [{"topic": "t", "partitions": [{"partition": 1, "fetch_offset": 7}]}]},
    tables.LIST_OFFSETS: {"topics": [{"name": "t", "partitions": [{"partition_index": 1, "timestamp": -1}]}]},
    tables.METADATA: {"topics": [{"name": "t"}]},
    group_tables.JOIN_GROUP: {"group_id": "g", "protocols": [{"name": "range", "metadata": b"topics"}]},
    group_tables.OFFSET_COMMIT: {
        "group_id": "g",
        "topics": [{"name": "t", "partitions": [{"partition_index": 1, "committed_offset": 7}]}],
    },
    tables.API_VERSIONS: {"client_software_name": "fuzz", "client_software_version": "1"},
}


def targets() -> list[Target]:
    frames = [
        b"".join(encode_request(api, version, 9, "client", api.encode_request(_REQUESTS.get(api, {}), version)))
        for api in _APIS.values()
        for version in range(api.version_min, api.version_max + 1)
    ]
    batches = [encode_batch(_RECORDS, codec=codec, producer=(5, 0, 1)) for codec in Codec]
    entries = [EntryStamp(lambda: 1).on_parts(9, kafka.body_parts(batch, 7, 0, 1_700_000_000_000)) for batch in batches]
    return [
        Target("kafka-request", frames, _request, (RemoteProtocolError,)),
        *(
            Target(f"kafka-{name}", [encode(value)], decode, (RemoteProtocolError,))
            for name, encode, decode, value in _stored_values()
        ),
        Target("kafka-batch", batches, _batch, (KafkaRefusedError,)),
        Target("kafka-entry", entries, _entry, (MalformedEntryError,)),
        *(
            Target(
                f"kafka-{codec.name.lower()}",
                [compress(codec, b"record " * 50), compress(codec, bytes(_CONTENT_BYTES_MAX))],
                partial(_decompressed, codec),
                (KafkaRefusedError,),
            )
            for codec in Codec
            if codec
        ),
    ]


def _request(data: bytes) -> object:
    end = frame_end(data, 0, len(data), _FRAME_BYTES_MAX)
    if end is None or end > len(data):
        return None
    reader = Reader(data[4:end])
    head = read_request_head(reader)
    api = _APIS.get(head.key)
    if api is None or not api.serves(head.version):
        return head
    finish_request_head(reader, api, head.version)
    value = api.decode_request(reader.data, head.version, reader.at)
    again = b"".join(api.encode_request(_sendable(value), head.version))
    assert api.decode_request(again, head.version) == value
    return value


def _stored_values() -> Iterator[tuple[str, Callable[[Any], bytes], Callable[[bytes], object], Any]]:
    """Values that members send and coordinators store: their encoders and decoders, and an example of each."""
    member = {"member_id": "m", "client_id": "c", "client_host": "/h", "subscription": b"s", "assignment": b"a"}
    group = {"protocol_type": "consumer", "protocol": "range", "leader": "m", "members": [member]}
    examples = {
        "group-record": (group_tables.GROUP_RECORD, "response", group),
        "offset-record": (group_tables.OFFSET_RECORD, "response", {"offset": 5, "metadata": "m"}),
        "subscription": (group_tables.MEMBER_DATA, "request", {"topics": ["t"]}),
        "assignment": (group_tables.MEMBER_DATA, "response", {"topics": [{"topic": "t", "partitions": [1, 2]}]}),
    }
    for name, (api, side, value) in examples.items():
        encode, decode = getattr(api, f"encode_{side}"), getattr(api, f"decode_{side}")
        yield name, partial(_encoded, encode), partial(_decoded, decode), value


def _encoded(encode: Callable[[Any, int], list[Buffer]], value: Any) -> bytes:
    return b"".join(encode(value, 0))


def _decoded(decode: Callable[[bytes, int], object], data: bytes) -> object:
    return decode(data, 0)


def _sendable(value: Any) -> Any:
    """The encoder takes records as a list of buffers."""
    if isinstance(value, dict):
        return {name: _sendable(each) for name, each in value.items()}
    if isinstance(value, list):
        return [_sendable(each) for each in value]
    return [value] if isinstance(value, memoryview) else value


def _batch(data: bytes) -> object:
    """The checksum is not compared: nearly every mutation would end there."""
    head = read_batch_head(data)
    found = list(records_of(data, head, _CONTENT_BYTES_MAX))
    assert sum(len(each.key or b"") + len(each.value or b"") for each in found) <= _CONTENT_BYTES_MAX + len(data)
    check(data, head)
    return found


def _entry(data: bytes) -> object:
    if not kafka.is_kafka(data):
        return None
    head = read_head(data)
    made = kafka.as_pulsar(data, _CONTENT_BYTES_MAX)
    converted = read_head(made)
    assert converted.messages == head.messages
    return len(list(messages_of_batch(made[converted.payload_offset :], converted.messages)))


def _decompressed(codec: Codec, data: bytes) -> object:
    found = decompress(codec, data, _CONTENT_BYTES_MAX)
    assert len(found) <= _CONTENT_BYTES_MAX
    return found
