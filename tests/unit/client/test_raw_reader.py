"""Whole entries as a broker sends them, in virtual time."""

from __future__ import annotations

import pytest

from magnetar.client import EARLIEST, MessageId, ProducerOptions, PulsarClient
from magnetar.errors import EndOfTopicError, MagnetarError
from magnetar.testing.waiting import until
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.entry import parse_entry
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandMessage
from tests.unit.client.fake_broker import LEDGER, TOPIC, FakeBroker, run


async def _publish(client: PulsarClient, count: int, *, is_batch: bool = False) -> None:
    producer = await client.producer("t", ProducerOptions(batching=is_batch))
    for at in range(count):
        producer.send_nowait(b"%d" % at)
    await producer.flush()
    await producer.aclose()


def test_entries_come_whole_from_the_one_that_was_asked_for() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        broker.sends_header = True
        await _publish(client, 5)
        reader = await client.raw_reader(TOPIC, MessageId(LEDGER, 2))
        taken = []
        while len(taken) < 3:
            taken += await reader.take(5.0)
        assert [(entry.ledger_id, entry.entry_id, entry.messages) for entry in taken] == [
            (LEDGER, number, 1) for number in (2, 3, 4)
        ]
        assert [parse_entry(entry.data).index for entry in taken] == [102, 103, 104]
        with pytest.raises(TimeoutError):
            await reader.take(1.0)
        subscribe = broker.commands(BaseCommand.SUBSCRIBE)[-1].subscribe
        assert (subscribe.durable, subscribe.force_topic_creation) == (False, False)

    run(scenario)


def test_a_batch_counts_as_its_messages_and_permits_follow_their_size() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 40, is_batch=True)
        await _publish(client, 40, is_batch=True)
        reader = await client.raw_reader(TOPIC, EARLIEST)
        taken = [*await reader.take(5.0)]
        while sum(entry.messages for entry in taken) < 80:
            taken += await reader.take(5.0)
        await until(lambda: broker.count(BaseCommand.FLOW) > 1, "more are asked for")
        granted = [command.flow.messagePermits for command in broker.commands(BaseCommand.FLOW)]
        assert granted[0] == 16
        assert max(granted[1:]) > 1_000

    run(scenario)


def test_after_a_lost_connection_it_goes_on_behind_what_was_taken() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 3)
        reader = await client.raw_reader(TOPIC, EARLIEST)
        taken = []
        while len(taken) < 3:
            taken += await reader.take(5.0)
        broker.disconnect_all()
        await until(lambda: broker.count(BaseCommand.SUBSCRIBE) == 2, "it is back")
        await _publish(client, 2)
        while len(taken) < 5:
            taken += await reader.take(30.0)
        assert [entry.entry_id for entry in taken] == [0, 1, 2, 3, 4]
        await until(lambda: broker.acked, "the broker is told how far it is")

    run(scenario)


def test_the_end_of_a_terminated_topic_is_told() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 1)
        reader = await client.raw_reader(TOPIC, EARLIEST)
        assert len(await reader.take(5.0)) == 1
        command = BaseCommand(type=BaseCommand.REACHED_END_OF_TOPIC)
        command.reachedEndOfTopic.consumer_id = reader.id
        broker.links[0].transport.write(encode.encode_command(command))
        await until(lambda: reader.is_at_end, "the end is told")
        with pytest.raises(EndOfTopicError):
            await reader.take(5.0)
        await reader.aclose()
        with pytest.raises(MagnetarError):
            await reader.take(5.0)

    run(scenario)


def test_an_entry_before_the_one_that_was_asked_for_is_dropped_and_its_permits_given_back() -> None:
    """A real broker begins with the requested entry, and not after it."""

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        await _publish(client, 5)
        reader = await client.raw_reader(TOPIC, MessageId(LEDGER, 4))
        flows = broker.count(BaseCommand.FLOW)
        (last,) = await reader.take(5.0)
        early = CommandMessage(consumer_id=reader.id)
        early.message_id.ledgerId, early.message_id.entryId = LEDGER, 3
        for _ in range(16):
            reader._on_message(early, last.data)
        with pytest.raises(TimeoutError):
            await reader.take(1.0)
        assert last.entry_id == 4
        assert broker.count(BaseCommand.FLOW) > flows

    run(scenario)
