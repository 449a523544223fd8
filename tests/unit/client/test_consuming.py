"""Consumers and readers against a broker that misbehaves when a test wants it, in virtual time."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.client import (
    EARLIEST,
    LATEST,
    SHARED,
    ClientOptions,
    ConsumerOptions,
    Message,
    MessageId,
    ProducerOptions,
    PulsarClient,
)
from magnetar.errors import (
    BrokerUnavailableError,
    ClosedError,
    ConsumerBusyError,
    EndOfTopicError,
    ServiceNotReadyError,
)
from magnetar.testing.waiting import until
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandAck
from tests.unit.client.fake_broker import LEDGER, TOPIC, FakeBroker, Link, run

SINGLE = ProducerOptions(batching=False)


async def _publish(client: PulsarClient, count: int, *, is_batch: bool = False, topic: str = "t") -> None:
    producer = await client.producer(topic, ProducerOptions(batching=is_batch))
    sent = [producer.send_nowait(b"%d" % at, key=f"k{at}", properties={"n": str(at)}) for at in range(count)]
    await producer.flush()
    assert all(future.exception() is None for future in sent)
    await producer.aclose()


def _acked(broker: FakeBroker) -> list[tuple[int, list[int]]]:
    ids = [message_id for ack in broker.acked for message_id in ack.message_id]
    return [(message_id.entryId, list(message_id.ack_set)) for message_id in ids]


def test_messages_come_in_order_with_what_was_said_about_them() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.sends_header = True
        consumer = await client.consumer("t", "s")
        await _publish(client, 3)
        messages = [await consumer.receive() for _ in range(3)]
        assert [message.payload for message in messages] == [b"0", b"1", b"2"]
        last = messages[-1]
        assert (last.id, last.topic, last.key, last.properties) == (MessageId(LEDGER, 2), TOPIC, "k2", {"n": "2"})
        assert (last.producer_name, last.sequence_id, last.index, last.batch_size) == ("fake-0-1", 2, 102, 0)
        with pytest.raises(TimeoutError):
            await consumer.receive(timeout_s=1.0)
        assert consumer.receive_nowait() is None

    run(scenario)


def test_an_acknowledgement_returns_with_its_receipt_and_one_in_passing_goes_with_others() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 5)
        consumer = await client.consumer("t", "s")
        messages = [await consumer.receive() for _ in range(5)]
        await consumer.acknowledge(messages[0])
        assert broker.acked[0].HasField("request_id")
        consumer.acknowledge_nowait(messages[1])
        consumer.acknowledge_nowait(messages[2])
        await consumer.acknowledge_to(messages[4])
        assert _acked(broker) == [(0, []), (1, []), (2, []), (4, [])]
        assert [len(ack.message_id) for ack in broker.acked] == [1, 2, 1]
        assert broker.acked[-1].ack_type == CommandAck.Cumulative

    run(scenario)


def test_an_acknowledgement_that_is_refused_raises() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        consumer = await client.consumer("t", "s")
        message = await consumer.receive()
        broker.answers[BaseCommand.ACK] = lambda _link, frame: encode.encode_ack_error(
            frame.command.ack.consumer_id, frame.command.ack.request_id, api.ServiceNotReady, "moving"
        )
        with pytest.raises(ServiceNotReadyError, match="moving"):
            await consumer.acknowledge(message)

    run(scenario)


def test_messages_of_a_batch_are_acknowledged_one_by_one_and_the_last_one_acknowledges_the_entry() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3, is_batch=True)
        consumer = await client.consumer("t", "s")
        messages = [await consumer.receive() for _ in range(3)]
        assert [message.id for message in messages] == [MessageId(LEDGER, 0, at) for at in range(3)]
        for at in (1, 0, 2):
            await consumer.acknowledge(messages[at])
        assert _acked(broker) == [(0, [0b101]), (0, [0b100]), (0, [])]

    run(scenario)


def test_without_batch_indexes_only_the_whole_entry_is_acknowledged() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 2, is_batch=True)
        consumer = await client.consumer("t", "s", ConsumerOptions(batch_index_acks=False))
        messages = [await consumer.receive() for _ in range(2)]
        await consumer.acknowledge(messages[1])
        assert not broker.acked
        await consumer.acknowledge(messages[0])
        assert _acked(broker) == [(0, [])]

    run(scenario)


def test_permits_are_given_back_by_halves_of_the_queue() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 40)
        consumer = await client.consumer("t", "s", ConsumerOptions(queue_messages_max=10))
        for _ in range(40):
            await consumer.receive()
        await until(lambda: broker.count(BaseCommand.FLOW) == 9, "all are given back")
        permits = [command.flow.messagePermits for command in broker.commands(BaseCommand.FLOW)]
        assert permits == [10] + [5] * 8

    run(scenario)


def test_a_rejected_message_comes_again_after_the_delay() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 2)
        consumer = await client.consumer("t", "s", ConsumerOptions(type=SHARED, redelivery_delay_s=20.0))
        messages = [await consumer.receive() for _ in range(2)]
        loop = asyncio.get_running_loop()
        before = loop.time()
        consumer.negative_acknowledge(messages[1])
        again = await consumer.receive()
        assert (again.payload, again.redelivery_count) == (b"1", 1)
        assert loop.time() - before == pytest.approx(20.0, abs=0.1)
        assert broker.count(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES) == 1

    run(scenario)


def test_after_a_redelivery_of_all_nothing_from_before_is_seen() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3)
        consumer = await client.consumer("t", "s")
        assert (await consumer.receive()).payload == b"0"

        def still_under_way(link: Link, frame: Frame) -> None:
            consumer_id = frame.command.redeliverUnacknowledgedMessages.consumer_id
            link.transport.write(link.message(consumer_id, 2, broker.topics[TOPIC][2], epoch=0))

        broker.answers[BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES] = still_under_way
        consumer.redeliver_unacknowledged()
        assert [(await consumer.receive()).payload for _ in range(3)] == [b"0", b"1", b"2"]
        (command,) = broker.commands(BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
        assert command.redeliverUnacknowledgedMessages.consumer_epoch == 1

    run(scenario)


def test_after_a_lost_connection_unacknowledged_messages_come_again() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3)
        consumer = await client.consumer("t", "s")
        first = await consumer.receive()
        broker.disconnect_all()
        await until(lambda: not any(link.consumers for link in broker.links), "it is lost")
        await until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2, "it is back")
        await consumer.acknowledge(first)  # Waits until there is a broker again.
        assert [(await consumer.receive()).payload for _ in range(3)] == [b"0", b"1", b"2"]
        assert broker.count(BaseCommand.SUBSCRIBE) == 2

    run(scenario)


def test_an_acknowledgement_fails_at_once_if_the_broker_closes_the_consumer_before_it_answers() -> None:
    """Apache's broker answers no acknowledgement of a consumer that it has closed."""

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        consumer = await client.consumer("t", "s")
        message = await consumer.receive()
        (link,) = [link for link in broker.links if link.consumers]
        (consumer_id,) = link.consumers
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id, command.close_consumer.request_id = consumer_id, 0
        broker.answers[BaseCommand.ACK] = lambda _link, _frame: encode.encode_command(command)
        async with asyncio.timeout(1.0):
            with pytest.raises(BrokerUnavailableError, match="closed the consumer"):
                await consumer.acknowledge(message)
        del broker.answers[BaseCommand.ACK]
        await consumer.acknowledge(await consumer.receive())

    run(scenario)


def test_a_broker_that_sends_the_consumer_away_is_asked_who_has_the_topic_now() -> None:
    other = FakeBroker("other")

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        consumer = await client.consumer("t", "s")
        await consumer.receive()
        other.topics[TOPIC] = broker.topics[TOPIC] * 2
        broker.owner_url = "pulsar://other:6650"
        (link,) = [link for link in broker.links if link.consumers]
        (consumer_id,) = link.consumers
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id, command.close_consumer.request_id = consumer_id, 0
        link.transport.write(encode.encode_command(command))
        await consumer.receive()
        assert other.count(BaseCommand.SUBSCRIBE) == 1

    run(scenario, others=(other,))


def test_a_seek_drops_what_was_received_and_goes_on_from_there() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3)
        consumer = await client.consumer("t", "s")
        await consumer.receive()
        await consumer.seek(EARLIEST)
        assert [(await consumer.receive()).payload for _ in range(3)] == [b"0", b"1", b"2"]
        await consumer.seek(1_700_000_000_000)
        seeks = [command.seek for command in broker.commands(BaseCommand.SEEK)]
        assert seeks[0].message_id.ledgerId == 2**64 - 1
        assert seeks[1].message_publish_time == 1_700_000_000_000

    run(scenario)


def test_a_seek_into_a_batch_begins_with_that_message() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3, is_batch=True)
        consumer = await client.consumer("t", "s")
        messages = [await consumer.receive() for _ in range(3)]
        await consumer.seek(messages[1].id)
        again = [await consumer.receive() for _ in range(2)]
        assert [message.payload for message in again] == [b"1", b"2"]
        for message in again:
            consumer.acknowledge_nowait(message)
        await until(lambda: bool(broker.acked), "they are acknowledged")
        assert _acked(broker) == [(0, [])]  # The first one is not awaited any more.

    run(scenario)


def test_behind_the_last_message_of_a_terminated_topic_is_its_end() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        consumer = await client.consumer("t", "s")
        (link,) = [link for link in broker.links if link.consumers]
        (consumer_id,) = link.consumers
        command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = consumer_id
        await until(lambda: link.consumers[consumer_id].next_entry == 1, "it is delivered")
        link.transport.write(encode.encode_command(command))
        assert (await consumer.receive()).payload == b"0"
        with pytest.raises(EndOfTopicError, match="was terminated"):
            await consumer.receive()

    run(scenario)


def test_a_damaged_message_is_acknowledged_as_such_and_the_next_one_comes() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 2)
        damaged = bytearray(broker.topics[TOPIC][0])
        damaged[-1] ^= 1
        broker.topics[TOPIC][0] = bytes(damaged)
        broker.topics[TOPIC].insert(1, b"not a message")
        consumer = await client.consumer("t", "s")
        assert (await consumer.receive()).payload == b"1"
        await until(lambda: len(broker.acked) == 2, "both are acknowledged")
        assert [ack.validation_error for ack in broker.acked] == [
            CommandAck.ChecksumMismatch,
            CommandAck.BatchDeSerializeError,
        ]

    run(scenario)


def test_a_subscription_that_is_taken_refuses_at_once() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.answers[BaseCommand.SUBSCRIBE] = lambda _link, frame: encode.encode_error(
            frame.command.subscribe.request_id, api.ConsumerBusy, "exclusive"
        )
        with pytest.raises(ConsumerBusyError, match="exclusive"):
            await client.consumer("t", "s")

    run(scenario)


def test_unsubscribing_ends_the_consumer() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        consumer = await client.consumer("t", "s")
        await consumer.unsubscribe(force=True)
        assert broker.commands(BaseCommand.UNSUBSCRIBE)[0].unsubscribe.force
        with pytest.raises(ClosedError, match="unsubscribed"):
            await consumer.receive()

    run(scenario)


def test_a_partitioned_topic_is_received_from_all_partitions() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.partitions[TOPIC] = 3
        await _publish(client, 30)
        consumer = await client.consumer("t", "s")
        messages = [await consumer.receive() for _ in range(30)]
        assert {message.id.partition for message in messages} == {0, 1, 2}
        await consumer.acknowledge(messages[0])
        await consumer.seek(MessageId(LEDGER, 0, partition=1))
        assert broker.count(BaseCommand.SEEK) == 1
        with pytest.raises(ValueError, match="3 partitions"):
            await consumer.seek(MessageId(LEDGER, 0))
        assert len(await consumer.last_message_ids()) == 3

    run(scenario)


def test_a_large_message_that_came_in_chunks_is_whole_again() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        from tests.unit.wire.pulsar.samples import golden

        frames = golden()["send chunked"]
        for frame in frames:
            command_size = int.from_bytes(frame[4:8], "big")
            broker.topics[TOPIC].append(frame[8 + command_size :])
        consumer = await client.consumer("t", "s")
        message = await consumer.receive()
        assert message.payload == bytes(3_000)
        assert message.id == MessageId(LEDGER, len(frames) - 1)
        await consumer.acknowledge(message)
        assert [entry for entry, _ in _acked(broker)] == list(range(len(frames)))

    run(scenario)


# --- readers ----------------------------------------------------------------------------------------------------------


async def _read_all(client: PulsarClient, start: MessageId, **options: bool) -> list[bytes]:
    reader = await client.reader("t", start, **options)  # type: ignore[arg-type]
    found: list[Message] = []
    while await reader.has_next():
        found.append(await reader.read())
    await reader.aclose()
    return [message.payload for message in found]


def test_a_reader_begins_where_it_is_told_to() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 4)
        assert await _read_all(client, EARLIEST) == [b"0", b"1", b"2", b"3"]
        assert await _read_all(client, LATEST) == []
        assert await _read_all(client, MessageId(LEDGER, 1)) == [b"2", b"3"]
        assert await _read_all(client, MessageId(LEDGER, 1), is_inclusive=True) == [b"1", b"2", b"3"]
        assert not broker.commands(BaseCommand.SUBSCRIBE)[0].subscribe.durable

    run(scenario)


def test_a_reader_begins_inside_a_batch() -> None:
    async def scenario(client: PulsarClient, _broker: FakeBroker) -> None:
        await _publish(client, 4, is_batch=True)
        reader = await client.reader("t", MessageId(LEDGER, 0, 1))
        assert [(await reader.read()).payload for _ in range(2)] == [b"2", b"3"]

    run(scenario)


def test_a_reader_goes_on_behind_what_it_read_after_a_lost_connection() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3)
        await _publish(client, 3, is_batch=True)
        reader = await client.reader("t", EARLIEST)
        found = []
        for _ in range(6):
            found.append((await reader.read()).payload)
            broker.disconnect_all()
            await until(lambda: not any(link.consumers for link in broker.links), "it is lost")
        assert found == [b"0", b"1", b"2", b"0", b"1", b"2"]

    run(scenario)


def test_a_reader_that_sought_a_time_asks_for_that_time_again_after_a_lost_connection() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        reader = await client.reader("t", LATEST)
        await reader.seek(0)
        await until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2, "it comes back")
        again = broker.commands(BaseCommand.SUBSCRIBE)[-1].subscribe
        assert again.start_message_rollback_duration_sec > 0
        await reader.read()
        broker.disconnect_all()
        await until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 3, "it comes back")
        last = broker.commands(BaseCommand.SUBSCRIBE)[-1].subscribe
        assert (last.start_message_rollback_duration_sec, last.start_message_id.entryId) == (0, 0)

    run(scenario)


def test_a_consumer_without_a_broker_for_too_long_says_so_to_whoever_waits() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        consumer = await client.consumer("t", "s")
        waiting = asyncio.create_task(consumer.receive(timeout_s=1_000.0))

        def refuse(link: Link, _frame: Frame) -> bytes:
            link.transport.abort()
            return b""

        broker.answers[BaseCommand.CONNECT] = refuse
        broker.disconnect_all()
        with pytest.raises(BrokerUnavailableError):
            await waiting

    run(scenario, options=ClientOptions(reconnect_timeout_s=20.0))
