"""Clients that take without giving, and die with what they have. Each gets as much as the limits say; a neighbour with
the official client is served after each, and finds all that was acknowledged at the end.

Limits:    small, so that they are reached soon; memory is measured.
Read next: test_hostile.py (bytes), test_outages.py (disks and metadata)
"""

from __future__ import annotations

import contextlib
import resource
import socket
import struct
from collections.abc import Iterator

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.wire.pulsar.encode import encode_command, encode_send_head
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandLookupTopicResponse,
    CommandSubscribe,
    MessageIdData,
)
from tests.integration.pulsar.neighbour import WAIT_MS, Neighbour, new_topic, resident_bytes
from tests.integration.pulsar.raw_client import RawClient, body_of

UNACKED_PER_CONSUMER, UNACKED_PER_SUBSCRIPTION = 100, 250
SETTINGS = (
    f"dispatch.unacked_messages_per_consumer_max={UNACKED_PER_CONSUMER}",
    f"dispatch.unacked_messages_per_subscription_max={UNACKED_PER_SUBSCRIPTION}",
    "topic.tail_cache_bytes_max=8388608",
    "storage.write_cache_bytes_max=8388608",
    "storage.read_cache_bytes_max=8388608",
    "pulsar.unsent_bytes_max=1048576",
    "pulsar.publish_memory_bytes_max=16777216",
)
MEGABYTE = 2**20
CONNECTIONS = 5_000
GONE = struct.pack("ii", 1, 0)  # Lingering for no time: what closes then resets the connection, as a dead client does.


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    process = StandaloneProcess(tmp_path_factory.mktemp("standalone") / "data", *SETTINGS)
    process.start()
    yield process
    assert process.stop() == 0


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


# --- who never reads --------------------------------------------------------------------------------------------------


def test_consumers_that_never_read_cost_a_bounded_amount_of_memory(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    topic, count = new_topic(), 60
    reads = neighbour.client.subscribe(topic, "reads", receiver_queue_size=10)
    producer = neighbour.client.create_producer(topic)
    for number in range(count):
        producer.send(bytes([number]) * MEGABYTE)
        message = reads.receive(WAIT_MS)
        reads.acknowledge(message)
    before = resident_bytes(standalone.pid)
    with contextlib.ExitStack() as closing:
        for number in range(6):
            deaf = closing.enter_context(RawClient(standalone.port, receive_bytes=MEGABYTE // 8))
            deaf.subscribe(topic, f"deaf-{number}", kind=CommandSubscribe.Exclusive, permits=1_000_000)
        late = neighbour.client.subscribe(topic, "late", initial_position=pulsar.InitialPosition.Earliest)
        for number in range(count):
            assert late.receive(WAIT_MS).data() == bytes([number]) * MEGABYTE
        assert resident_bytes(standalone.pid) - before < 100 * MEGABYTE  # Of 360 that they have permits for.
    producer.close()
    late.close()
    reads.close()


def test_a_flood_of_lookups_by_a_client_that_never_reads_is_held_and_then_answered_to_the_last(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    lookup = BaseCommand(type=BaseCommand.LOOKUP)
    lookup.lookupTopic.topic, lookup.lookupTopic.request_id = new_topic(), 1
    before = resident_bytes(standalone.pid)
    with RawClient(standalone.port, receive_bytes=MEGABYTE // 8) as flood:
        asked = flood.write_until_held(encode_command(lookup), 64 * MEGABYTE)
        assert neighbour.is_served()
        assert resident_bytes(standalone.pid) - before < 32 * MEGABYTE
        assert asked * len(encode_command(lookup)) < 64 * MEGABYTE, "it was never held"
        for _ in range(asked):
            found = flood.hear(BaseCommand.LOOKUP_RESPONSE).lookupTopicResponse
            assert found.response == CommandLookupTopicResponse.Connect


def test_a_producer_that_never_reads_its_receipts_is_held_and_then_gets_every_one(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    body = body_of(b"x")
    frame = encode_send_head(1, 5, 0, 1, len(body)) + body
    before = resident_bytes(standalone.pid)
    with RawClient(standalone.port, receive_bytes=MEGABYTE // 8) as flood:
        flood.producer(new_topic())
        sent = flood.write_until_held(frame, 256 * MEGABYTE)
        assert neighbour.is_served()
        assert resident_bytes(standalone.pid) - before < 64 * MEGABYTE
        assert sent * len(frame) < 256 * MEGABYTE, "it was never held"
        last = (-1, -1)
        for _ in range(sent):
            receipt = flood.hear(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR).send_receipt.message_id
            assert (receipt.ledgerId, receipt.entryId) > last
            last = (receipt.ledgerId, receipt.entryId)


# --- who never acknowledges -------------------------------------------------------------------------------------------


def test_a_consumer_that_never_acknowledges_gets_no_more_than_the_limit_and_others_the_rest(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    topic = new_topic()
    producer = neighbour.client.create_producer(topic)
    with RawClient(standalone.port) as first, RawClient(standalone.port) as second, RawClient(standalone.port) as other:
        first.subscribe(topic, permits=10_000)
        other.subscribe(topic, "other", kind=CommandSubscribe.Exclusive, permits=10_000)
        for number in range(400):
            producer.send_async(b"%03d" % number, None)
        producer.flush()
        assert _received(other, 400) == 400  # An Exclusive one has no limit.
        assert _received(first, UNACKED_PER_CONSUMER) == UNACKED_PER_CONSUMER
        second.subscribe(topic, permits=10_000)
        assert _received(second, UNACKED_PER_CONSUMER) == UNACKED_PER_CONSUMER
    producer.close()


def test_a_subscription_that_never_acknowledges_stops_at_its_limit_and_goes_on_with_an_acknowledgement(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    topic = new_topic()
    producer = neighbour.client.create_producer(topic, batching_enabled=False)
    with contextlib.ExitStack() as closing:
        consumers = [closing.enter_context(RawClient(standalone.port)) for _ in range(4)]
        for consumer in consumers:
            consumer.subscribe(topic, permits=10_000)
        for number in range(400):
            producer.send_async(b"%03d" % number, None)
        producer.flush()
        ids: list[list[MessageIdData]] = [[] for _ in consumers]
        wait_for(lambda: sum(map(len, _drain(consumers, ids))) >= UNACKED_PER_SUBSCRIPTION, what="250 messages")
        _drain(consumers, ids)
        assert sum(map(len, ids)) == UNACKED_PER_SUBSCRIPTION
        assert max(map(len, ids)) <= UNACKED_PER_CONSUMER

        def acknowledge_all() -> bool:
            for consumer, held in zip(consumers, ids, strict=True):
                if held:
                    _acknowledge(consumer, held)
            return sum(map(len, _drain(consumers, ids))) == 400

        wait_for(acknowledge_all, what="the rest")
    producer.close()


def _received(consumer: RawClient, expected: int) -> int:
    count = 0
    while count < expected:
        consumer.hear(BaseCommand.MESSAGE)
        count += 1
    return count + len(consumer.ids_until_pong()) + len(consumer.ids_until_pong())


def _drain(consumers: list[RawClient], ids: list[list[MessageIdData]]) -> list[list[MessageIdData]]:
    """What each of them has by now."""
    for consumer, held in zip(consumers, ids, strict=True):
        held += consumer.ids_until_pong()
    return ids


def _acknowledge(consumer: RawClient, ids: list[MessageIdData]) -> None:
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type = 1, CommandAck.Individual
    command.ack.request_id = consumer.request_id()
    command.ack.message_id.extend(ids)
    consumer.say(command)


# --- who dies ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "kind",
    [CommandSubscribe.Exclusive, CommandSubscribe.Shared, CommandSubscribe.Failover, CommandSubscribe.Key_Shared],
)
def test_what_a_dead_consumer_had_in_hand_comes_to_the_next_one(
    standalone: StandaloneProcess, neighbour: Neighbour, kind: CommandSubscribe.SubType
) -> None:
    topic = new_topic()
    producer = neighbour.client.create_producer(topic)
    dead = RawClient(standalone.port)
    dead.subscribe(topic, kind=kind, permits=100)
    for number in range(50):
        producer.send(b"%03d" % number)
    ids = [dead.hear(BaseCommand.MESSAGE).message.message_id for _ in range(50)]
    _acknowledge(dead, ids[:10])
    dead.hear(BaseCommand.ACK_RESPONSE)
    dead.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, GONE)
    dead.socket.close()
    heir = neighbour.client.subscribe(topic, "s", pulsar.ConsumerType(kind))
    assert [heir.receive(WAIT_MS).data() for _ in range(40)] == [b"%03d" % number for number in range(10, 50)]
    heir.close()
    producer.close()


def test_a_producer_that_dies_in_the_middle_of_a_batch_leaves_what_was_acknowledged(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    topic, payload = new_topic(), bytes(MEGABYTE)
    for life in range(5):
        dying = RawClient(standalone.port)
        dying.producer(topic)
        dying.published(1, 0, body_of(b"acknowledged %d" % life))
        body = body_of(payload)
        dying.write((encode_send_head(1, 1, 0, 1, len(body)) + body)[: len(body) - life * 1000])
        dying.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, GONE)
        dying.socket.close()
    reader = neighbour.client.create_reader(topic, pulsar.MessageId.earliest)
    assert [reader.read_next(WAIT_MS).data() for _ in range(5)] == [b"acknowledged %d" % life for life in range(5)]
    assert not reader.has_message_available()
    reader.close()


# --- who is many ------------------------------------------------------------------------------------------------------


def test_five_thousand_connections_are_no_burden_for_the_others(
    standalone: StandaloneProcess, neighbour: Neighbour
) -> None:
    allowed, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most < CONNECTIONS + 1_000:
        pytest.skip(f"this system allows {most} open files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(allowed, CONNECTIONS + 1_000), most))
    before = resident_bytes(standalone.pid)
    with contextlib.ExitStack() as closing:
        crowd = [closing.enter_context(RawClient(standalone.port, says_hello=False)) for _ in range(CONNECTIONS)]
        for one in crowd[::2]:
            one.say_hello()
        assert neighbour.is_served()
        assert all(one.is_served() for one in crowd[::500])
        assert resident_bytes(standalone.pid) - before < 100 * MEGABYTE
    assert neighbour.is_served()
