"""Bytes and requests that no client should send. Each costs its sender at most its own connection, and other clients
nothing: the official client is served after each, and finds all that was acknowledged at the end."""

from __future__ import annotations

import struct
from collections.abc import Iterator

import pytest

from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.wire.pulsar.encode import encode_command, encode_flow, encode_send_head
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandGetTopicsOfNamespace,
    CommandLookupTopicResponse,
    CommandSubscribe,
    IntRange,
    KeySharedMode,
    Schema,
    ServerError,
)
from tests.integration.pulsar.neighbour import Neighbour, new_topic
from tests.integration.pulsar.raw_client import RawClient, body_of, connect_command

PRODUCER_SUCCESS, ERROR = BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR


@pytest.fixture(scope="module")
def neighbour(standalone: StandaloneProcess) -> Iterator[Neighbour]:
    neighbour = Neighbour(standalone)
    yield neighbour
    assert neighbour.lost_nothing()
    neighbour.close()


@pytest.fixture(autouse=True)
def _others_are_served(neighbour: Neighbour) -> Iterator[None]:
    yield
    assert neighbour.is_served()


@pytest.fixture
def raw(standalone: StandaloneProcess) -> Iterator[RawClient]:
    with RawClient(standalone.port) as client:
        yield client


# --- bytes that are no frames -----------------------------------------------------------------------------------------

_CONNECT = encode_command(connect_command())
_GARBAGE = {
    "the longest length there is": struct.pack(">II", 2**32 - 1, 4),
    "a length beyond the limit": struct.pack(">II", 5 * 2**20 + 20_000, 4),
    "a length of nothing": struct.pack(">II", 0, 0),
    "a length too short for a command": struct.pack(">II", 3, 0),
    "a command longer than its frame": struct.pack(">II", 8, 2**31 - 1) + b"xxxx",
    "an empty command": struct.pack(">II", 4, 0),
    "bytes that are not protobuf": struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
    "a command without its field": struct.pack(">II", 6, 2) + b"\x08\x06",
    "a command of an unknown type": struct.pack(">II", 7, 3) + b"\x08\xe7\x07",
    "a field nested a thousand deep": struct.pack(">II", 2004, 2000) + b"\x12\x7f" * 1000,
    "another protocol": b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n",
    "TLS, which there is not": bytes.fromhex("16030100a5010000a10303") + bytes(160),
}


@pytest.mark.parametrize("says_hello", [True, False], ids=["connected", "unconnected"])
@pytest.mark.parametrize("garbage", _GARBAGE.values(), ids=_GARBAGE)
def test_bytes_that_are_no_frame_end_the_connection(
    standalone: StandaloneProcess, garbage: bytes, says_hello: bool
) -> None:
    with RawClient(standalone.port, says_hello=says_hello) as client:
        client.write(garbage)
        assert client.is_closed_by_peer()


def test_a_frame_cut_short_is_forgotten_with_its_connection(standalone: StandaloneProcess) -> None:
    for length in range(1, len(_CONNECT)):
        with RawClient(standalone.port, says_hello=False) as client:
            client.write(_CONNECT[:length])


def test_a_large_frame_that_stops_in_its_middle_is_forgotten(raw: RawClient, standalone: StandaloneProcess) -> None:
    topic = new_topic()
    assert raw.producer(topic).type == PRODUCER_SUCCESS
    body = body_of(bytes(3 * 2**20))
    frame = encode_send_head(1, 0, 0, 1, len(body)) + body
    raw.write(frame[: len(frame) // 2])
    raw.socket.close()
    with RawClient(standalone.port) as other:
        other.subscribe(topic, permits=10)
        other.producer(topic)
        assert other.published(1, 0, body_of(b"whole")).type == BaseCommand.SEND_RECEIPT
        assert other.hear_with_body(BaseCommand.MESSAGE)[1].endswith(b"whole")


def test_frames_that_come_byte_by_byte_are_understood(standalone: StandaloneProcess) -> None:
    with RawClient(standalone.port, says_hello=False) as client:
        for byte in _CONNECT:
            client.write(bytes([byte]))
        assert client.hear(BaseCommand.CONNECTED).connected.protocol_version == 21


# --- commands out of place --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["producer", "subscribe", "lookupTopic", "send", "ack", "flow", "newTxn"])
def test_a_command_before_the_handshake_ends_the_connection(standalone: StandaloneProcess, kind: str) -> None:
    with RawClient(standalone.port, says_hello=False) as client:
        client.say(_filled(kind))
        assert client.is_closed_by_peer()


@pytest.mark.parametrize(
    "kind", ["connect", "connected", "message", "send_receipt", "producer_success", "authChallenge"]
)
def test_a_command_that_is_not_for_brokers_or_not_twice_ends_the_connection(raw: RawClient, kind: str) -> None:
    raw.say(_filled(kind))
    assert raw.is_closed_by_peer()


@pytest.mark.parametrize("kind", ["ack", "flow", "redeliverUnacknowledgedMessages"])
def test_a_word_for_a_consumer_that_is_not_there_means_nothing(raw: RawClient, kind: str) -> None:
    raw.say(_filled(kind))
    assert raw.is_served()


@pytest.mark.parametrize("kind", ["unsubscribe", "seek", "getLastMessageId", "consumerStats"])
def test_a_request_of_a_consumer_that_is_not_there_is_refused(raw: RawClient, kind: str) -> None:
    raw.say(_filled(kind))
    answer = raw.hear(ERROR, BaseCommand.CONSUMER_STATS_RESPONSE)
    assert answer.error.message or answer.consumerStatsResponse.error_message


def test_a_message_for_a_producer_that_never_was_ends_the_connection(raw: RawClient) -> None:
    raw.publish(77, 0, body_of(b"to nobody"))
    assert raw.is_closed_by_peer()


def _filled(kind: str) -> BaseCommand:
    """A command of this kind that is complete, and of nothing that exists."""
    field = BaseCommand.DESCRIPTOR.fields_by_name[kind]
    command = BaseCommand(type=field.number)  # type: ignore[arg-type]  # A type has its field's number.
    content = getattr(command, kind)
    content.SetInParent()
    _fill(content)
    return command


def _fill(message: object) -> None:
    for field in message.DESCRIPTOR.fields:  # type: ignore[attr-defined]
        if not field.is_required:
            continue
        if field.message_type is not None:
            getattr(message, field.name).SetInParent()
            _fill(getattr(message, field.name))
        elif field.enum_type is not None:
            setattr(message, field.name, field.enum_type.values[0].number)
        else:
            setattr(message, field.name, "x" if field.cpp_type == field.CPPTYPE_STRING else 7)


# --- malformed messages -----------------------------------------------------------------------------------------------


def test_a_wrong_checksum_is_refused_and_the_next_message_is_not(raw: RawClient) -> None:
    raw.producer(new_topic())
    damaged = bytearray(body_of(b"damaged"))
    damaged[-1] ^= 1
    refused = raw.published(1, 0, bytes(damaged))
    assert refused.send_error.error == ServerError.ChecksumError
    assert raw.published(1, 1, body_of(b"whole")).type == BaseCommand.SEND_RECEIPT


def test_a_message_over_the_limit_ends_the_connection_before_it_is_read(raw: RawClient) -> None:
    raw.producer(new_topic())
    body = body_of(bytes(6 * 2**20))
    raw.write(encode_send_head(1, 0, 0, 1, len(body)) + body[:1000])
    assert raw.is_closed_by_peer()


_ODD_BODIES: dict[str, bytes] = {
    "nothing at all": b"",
    "three bytes": b"abc",
    "only a checksum": with_checksum(b"", b"")[:6],
    "metadata that is not protobuf": with_checksum(b"\xff" * 20, b"payload"),
    "metadata without its required fields": with_checksum(b"", b"payload"),
    "metadata longer than the message": b"\x7f\xff\xff\xff" + b"x" * 40,
    "a batch that is not one": body_of(b"not a batch", num_messages_in_batch=100),
    "a batch of less than nothing": body_of(b"x", num_messages_in_batch=-5),
    "a chunk that is not one": body_of(b"x", chunk_id=5, num_chunks_from_msg=2, uuid="u", total_chunk_msg_size=-1),
    "compressed by nobody": body_of(b"x", compression=4, uncompressed_size=2**31),
    "a marker": body_of(b"x", marker_type=999),
    "to be delivered in the year 292277026596": body_of(b"x", deliver_at_time=2**63 - 1),
    "to be delivered before time began": body_of(b"x", deliver_at_time=-(2**63)),
    "a key of a megabyte": body_of(b"x", partition_key="k" * 2**20),
    "a broker's own header": b"\x0e\x02\x00\x00\x00\x02\x08\x01" + body_of(b"x"),
}


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Key_Shared])
@pytest.mark.parametrize("body", _ODD_BODIES.values(), ids=_ODD_BODIES)
def test_a_message_that_is_none_does_not_keep_the_next_one_from_a_consumer(
    standalone: StandaloneProcess, body: bytes, kind: CommandSubscribe.SubType
) -> None:
    topic = new_topic()
    with RawClient(standalone.port) as consumer:
        consumer.subscribe(topic, kind=kind, permits=1000)
        with RawClient(standalone.port) as sender:
            sender.producer(topic)
            sender.publish(1, 0, body, messages=1)  # Refused, stored or the end of the connection.
            sender.is_served_or_closed()
        with RawClient(standalone.port) as sender:
            sender.producer(topic)
            assert sender.published(1, 1, body_of(b"the next one")).type == BaseCommand.SEND_RECEIPT
        while not consumer.hear_with_body(BaseCommand.MESSAGE)[1].endswith(b"the next one"):
            pass


def test_an_entry_that_claims_two_billion_messages_is_delivered_and_so_is_the_next_one(
    raw: RawClient, standalone: StandaloneProcess
) -> None:
    topic = new_topic()
    raw.producer(topic)
    with RawClient(standalone.port) as consumer:
        consumer.subscribe(topic, kind=CommandSubscribe.Exclusive, permits=10)
        claim = 2**31 - 1
        raw.published(1, 0, body_of(b"first", num_messages_in_batch=claim), messages=claim)
        raw.published(1, 1, body_of(b"second"))
        assert consumer.hear_with_body(BaseCommand.MESSAGE)[1].endswith(b"first")
        consumer.write(encode_flow(1, 2**31))
        assert consumer.hear_with_body(BaseCommand.MESSAGE)[1].endswith(b"second")


# --- requests with impossible contents --------------------------------------------------------------------------------

_BAD_NAMES = [
    "", " ", "/", "a/b", "a/b/c/d/e", "persistent://", "persistent://a", "persistent://a/b", "nowhere://a/b/c",
    "persistent://public/default/", "persistent://public/default/..", "persistent://public/de fault/x",
    "persistent://../../x", "persistent://public/default/a/b", "x" * 20_000,
]  # fmt: skip


@pytest.mark.parametrize("name", _BAD_NAMES, ids=lambda name: repr(name[:40]))
def test_a_topic_name_that_is_not_one_is_refused_in_words(raw: RawClient, name: str) -> None:
    for answer in (raw.producer(name), raw.subscribe(name)):
        assert answer.error.error == ServerError.InvalidTopicName
        assert answer.error.message
    raw.look_up(name)
    found = raw.hear(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
    assert found.response == CommandLookupTopicResponse.Failed
    assert found.error == ServerError.InvalidTopicName
    assert raw.is_served()


@pytest.mark.parametrize("name", ["persistent://nobody/default/t", "persistent://public/nowhere/t"])
def test_a_tenant_or_namespace_that_is_not_there_is_refused_in_words(raw: RawClient, name: str) -> None:
    answer = raw.producer(name)
    assert answer.error.error == ServerError.TopicNotFound
    assert answer.error.message
    assert raw.is_served()


def test_odd_names_of_topics_and_subscriptions_work(raw: RawClient) -> None:
    for number, name in enumerate(("ünïcödé", "a b", "%2F", "a%00b", "🦀", "-partition-", "x-partition-07", "a\nb"), 1):
        topic = f"persistent://public/default/{name}"
        assert raw.producer(topic, number).type == PRODUCER_SUCCESS, name
        assert raw.subscribe(topic, name, number, permits=1).type == BaseCommand.SUCCESS, name
        raw.published(number, 0, body_of(name.encode()))
        assert raw.hear_with_body(BaseCommand.MESSAGE)[1].endswith(name.encode())


def test_a_schema_that_does_not_fit_is_refused_and_the_first_one_stays(raw: RawClient) -> None:
    topic = new_topic()
    first = b'{"type":"record","name":"R","fields":[{"name":"a","type":"string"}]}'
    assert _producer_with_schema(raw, topic, 2, Schema.Avro, first).type == PRODUCER_SUCCESS
    for number, (kind, data) in enumerate(
        [
            (Schema.Avro, b'{"type":"record","name":"R","fields":[{"name":"a","type":"int"}]}'),
            (Schema.Avro, b"not json"),
            (Schema.Avro, b'{"type":"record"}'),
            (Schema.Avro, b'{"type":' * 5_000),
            (Schema.Avro, b'["null",' * 5_000 + b'"int"' + b"]" * 5_000),
            (Schema.Json, b"\xff\xfe"),
            (Schema.Protobuf, b"{}"),
            (Schema.ProtobufNative, b"\xff" * 50),
            (Schema.KeyValue, b"\x7f\xff\xff\xffx"),
            (Schema.Int32, b""),
        ],
        10,
    ):
        answer = _producer_with_schema(raw, topic, number, kind, data)
        assert answer.error.error == ServerError.IncompatibleSchema, data[:40]
        assert answer.error.message
    assert _producer_with_schema(raw, topic, 99, Schema.Avro, first).type == PRODUCER_SUCCESS


@pytest.mark.parametrize("kind", [Schema.Avro, Schema.Json, Schema.Protobuf, Schema.ProtobufNative, Schema.KeyValue])
@pytest.mark.parametrize(
    "data", [b"", b"null", b"[]", b"{", b"\xff" * 50, b"[" * 100_000, b'{"type":' * 9_999 + b'"int"']
)
def test_a_first_schema_that_is_none_is_refused_or_taken_and_the_topic_lives(
    raw: RawClient, kind: Schema.Type, data: bytes
) -> None:
    topic = new_topic()
    answer = _producer_with_schema(raw, topic, 1, kind, data)
    assert answer.type in (PRODUCER_SUCCESS, ERROR)
    assert raw.subscribe(topic).type == BaseCommand.SUCCESS


def _producer_with_schema(raw: RawClient, topic: str, producer_id: int, kind: Schema.Type, data: bytes) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    request = command.producer
    request.topic, request.producer_id, request.request_id = topic, producer_id, raw.request_id()
    request.schema.name, request.schema.type, request.schema.schema_data = "s", kind, data
    raw.say(command)
    return raw.hear(PRODUCER_SUCCESS, ERROR)


_ODD_IDS = [(0, 0), (2**64 - 1, 2**64 - 1), (2**63 - 1, 2**63 - 1), (2**63, 2**63), (5, 2**63 - 1), (0, 2**64 - 5)]


@pytest.mark.parametrize("kind", [CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Key_Shared])
def test_acknowledgements_of_what_never_was_change_nothing(
    raw: RawClient, standalone: StandaloneProcess, kind: CommandSubscribe.SubType
) -> None:
    topic = new_topic()
    raw.producer(topic)
    raw.subscribe(topic, kind=kind, permits=1)
    ids = [raw.published(1, number, body_of(b"%d" % number)).send_receipt.message_id for number in range(5)]
    ledger_id = ids[0].ledgerId
    for odd in [*_ODD_IDS, (ledger_id, 2**62), (ledger_id, 2**64 - 7), (ledger_id + 1, 0)]:
        _acknowledge(raw, *odd)
        _acknowledge(raw, *odd, batch_size=2**31 - 1, ack_set=[-1] * 20_000)
        _acknowledge(raw, *odd, batch_size=-1, ack_set=[0])
    _acknowledge(raw, ledger_id, 3, batch_size=2**31 - 1, ack_set=[-1] * 20_000)
    raw.socket.close()
    with RawClient(standalone.port) as other:
        other.subscribe(topic, kind=kind, permits=5)
        assert [other.hear_with_body(BaseCommand.MESSAGE)[1][-1:] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


def _acknowledge(raw: RawClient, ledger_id: int, entry_id: int, batch_size: int = 0, ack_set: list[int] = []) -> None:  # noqa: B006
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, CommandAck.Individual
    command.ack.request_id = raw.request_id()
    command.ack.message_id.add(ledgerId=ledger_id, entryId=entry_id, batch_size=batch_size, ack_set=ack_set)
    raw.say(command)
    raw.hear(BaseCommand.ACK_RESPONSE)


@pytest.mark.parametrize("odd", _ODD_IDS)
def test_a_seek_to_what_never_was_is_answered(raw: RawClient, odd: tuple[int, int]) -> None:
    topic = new_topic()
    raw.producer(topic)
    raw.subscribe(topic)
    raw.published(1, 0, body_of(b"only"))
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, raw.request_id()
    command.seek.message_id.ledgerId, command.seek.message_id.entryId = odd
    raw.say(command)
    assert raw.hear(BaseCommand.SUCCESS, ERROR).type in (BaseCommand.SUCCESS, ERROR)
    assert raw.is_served()


_ODD_RANGES = [[], [(0, 70_000)], [(-1, 5)], [(10, 5)], [(0, 100), (50, 150)], [(i, i) for i in range(0, 60_000, 2)]]


@pytest.mark.parametrize("ranges", _ODD_RANGES, ids=lambda ranges: str(ranges[:2]))
def test_sticky_ranges_that_are_none_are_refused_or_kept(raw: RawClient, ranges: list[tuple[int, int]]) -> None:
    topic = new_topic()
    command = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = command.subscribe
    request.topic, request.subscription, request.subType = topic, "s", CommandSubscribe.Key_Shared
    request.consumer_id, request.request_id = 1, raw.request_id()
    request.keySharedMeta.keySharedMode = KeySharedMode.STICKY
    request.keySharedMeta.hashRanges.extend(IntRange(start=start, end=end) for start, end in ranges)
    raw.say(command)
    assert raw.hear(BaseCommand.SUCCESS, ERROR).type in (BaseCommand.SUCCESS, ERROR)
    assert raw.is_served()


@pytest.mark.parametrize("pattern", ["(a+)+$", "[", "(?P<n>", "x" * 100_000, "(a|a)*" * 20])
def test_a_pattern_that_is_none_or_takes_for_ever_is_answered_at_once(raw: RawClient, pattern: str) -> None:
    raw.producer(f"persistent://public/default/{'a' * 60}!")
    command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE)
    request = command.getTopicsOfNamespace
    request.request_id, request.namespace = raw.request_id(), "public/default"
    request.mode, request.topics_pattern = CommandGetTopicsOfNamespace.ALL, pattern
    raw.say(command)
    answer = raw.hear(BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE, ERROR)
    assert answer.error.message or not answer.getTopicsOfNamespaceResponse.filtered
