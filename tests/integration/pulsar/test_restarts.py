"""What is still known after a kill -9: duplicates, delayed messages, parts of batches, schemas, policies."""

from __future__ import annotations

from datetime import timedelta

import pulsar
import pytest
from pulsar.schema import JsonSchema, Record, String

from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.wire.pulsar.encode import encode_flow
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandAck
from tests.integration.pulsar.conftest import connect
from tests.integration.pulsar.raw_client import RawClient, batch_payload, body_of

WAIT_MS = 20_000
SHARED = pulsar.ConsumerType.Shared
EARLIEST = pulsar.InitialPosition.Earliest


def restart(process: StandaloneProcess) -> None:
    process.kill()
    process.start()


def test_a_message_that_is_sent_again_after_a_kill_is_stored_once(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    producer = client.create_producer("t", "me")
    for number in range(5):
        producer.send(b"%d" % number, sequence_id=number)
    client.close()
    restart(mortal)
    client = connect(mortal)
    producer = client.create_producer("t", "me")
    assert producer.last_sequence_id() == 4
    for number in range(3, 8):
        producer.send(b"%d" % number, sequence_id=number)
    reader = client.create_reader("t", pulsar.MessageId.earliest)
    assert [int(reader.read_next(WAIT_MS).data()) for _ in range(8)] == list(range(8))
    assert not reader.has_message_available()
    client.close()


def test_delayed_messages_are_delayed_and_delivered_after_a_kill(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    client.subscribe("t", "s", SHARED).close()
    producer = client.create_producer("t")
    for number in range(10):
        producer.send(b"tomorrow %d" % number, deliver_after=timedelta(days=1))
        producer.send(b"late %d" % number, deliver_after=timedelta(seconds=3))
    producer.send(b"now")
    restart(mortal)
    consumer = client.subscribe("t", "s", SHARED)
    found = [consumer.receive(WAIT_MS).data() for _ in range(11)]
    assert sorted(found) == sorted([b"now", *(b"late %d" % number for number in range(10))])
    with pytest.raises(pulsar.Timeout):
        consumer.receive(400)
    client.close()


def test_a_consumer_and_a_producer_come_back_by_themselves_with_their_permits(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    consumer = client.subscribe("t", "s", SHARED, receiver_queue_size=3)
    producer = client.create_producer("t", send_timeout_millis=0)
    for life in range(3):
        for number in range(10):
            producer.send(b"%d-%d" % (life, number))
        wanted = {b"%d-%d" % (life, number) for number in range(10)}
        while wanted:
            message = consumer.receive(WAIT_MS)
            consumer.acknowledge(message)
            wanted -= {message.data()}
        restart(mortal)
    client.close()


def test_a_part_of_a_batch_that_was_acknowledged_stays_so_after_a_stop(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    consumer = client.subscribe("t", "s", SHARED, batch_index_ack_enabled=True)
    producer = client.create_producer("t", batching_enabled=True, batching_max_publish_delay_ms=200)
    for number in range(10):
        producer.send_async(b"%d" % number, None)
    producer.flush()
    for message in [consumer.receive(WAIT_MS) for _ in range(4)]:
        consumer.acknowledge(message)
    client.close()  # Which says the acknowledgements before it goes.
    assert mortal.stop() == 0
    mortal.start()
    client = connect(mortal)
    again = client.subscribe("t", "s", SHARED, batch_index_ack_enabled=True)
    assert sorted(int(again.receive(WAIT_MS).data()) for _ in range(6)) == list(range(4, 10))
    client.close()


def test_a_part_of_a_batch_whose_acknowledgement_has_a_receipt_stays_so_after_a_kill(
    mortal: StandaloneProcess,
) -> None:
    with RawClient(mortal.port) as raw:
        raw.producer("t")
        raw.subscribe("t")
        raw.published(1, 0, body_of(batch_payload([b"a", b"b", b"c"]), num_messages_in_batch=3), messages=3)
        raw.write(encode_flow(1, 10))
        position = raw.hear(BaseCommand.MESSAGE).message.message_id
        ack = BaseCommand(type=BaseCommand.ACK)
        ack.ack.consumer_id, ack.ack.ack_type, ack.ack.request_id = 1, CommandAck.Individual, raw.request_id()
        ids = {"ledgerId": position.ledgerId, "entryId": position.entryId}
        ack.ack.message_id.add(**ids, batch_size=3, ack_set=[0b101])
        raw.say(ack)
        assert not raw.hear(BaseCommand.ACK_RESPONSE).ackResponse.HasField("error")
    restart(mortal)
    with RawClient(mortal.port) as raw:
        raw.subscribe("t", permits=10)
        assert list(raw.hear(BaseCommand.MESSAGE).message.ack_set) == [0b101]


class Reading(Record):
    place = String()


def test_a_schema_and_its_versions_are_known_after_a_kill(mortal: StandaloneProcess) -> None:
    client = connect(mortal)
    client.create_producer("t", schema=JsonSchema(Reading)).send(Reading(place="here"))
    client.close()
    restart(mortal)
    client = connect(mortal)
    consumer = client.subscribe("t", "s", schema=JsonSchema(Reading), initial_position=EARLIEST)
    assert consumer.receive(WAIT_MS).value().place == "here"
    with pytest.raises(pulsar.IncompatibleSchema):
        client.create_producer("t", schema=pulsar.schema.StringSchema())
    client.close()
