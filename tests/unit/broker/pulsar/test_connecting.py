from __future__ import annotations

import struct

import pytest

from magnetar.config.pulsar import PulsarConfig
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.encode import PING, encode_command
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, broker_world
from tests.unit.wire.pulsar.samples import spoiled

pytestmark = pytest.mark.virtual_time


async def test_the_handshake_answers_with_the_lower_version_the_message_size_and_what_the_broker_can(
    world: BrokerWorld,
) -> None:
    old, new = await world.dial(), await world.dial()
    assert (await old.connect(version=15)).connected.protocol_version == 15
    connected = (await new.connect(version=99)).connected
    assert connected.protocol_version == 21
    assert connected.max_message_size == 5 * 2**20
    assert connected.feature_flags.supports_topic_watchers
    assert connected.feature_flags.supports_get_partitioned_metadata_without_auto_creation


async def test_whatever_comes_before_the_handshake_ends_the_connection(world: BrokerWorld) -> None:
    talker = await world.dial()
    command = BaseCommand(type=BaseCommand.LOOKUP)
    command.lookupTopic.topic, command.lookupTopic.request_id = "t", 1
    talker.send(command)
    await talker.wait_closed()
    assert world.front_end.counters.broken == 1


async def test_a_second_handshake_ends_the_connection(world: BrokerWorld) -> None:
    talker = await world.talker()
    with pytest.raises(ConnectionResetError):
        await talker.connect()


async def test_a_command_that_is_not_for_brokers_ends_the_connection(world: BrokerWorld) -> None:
    talker = await world.talker()
    command = BaseCommand(type=BaseCommand.SUCCESS)
    command.success.request_id = 1
    talker.send(command)
    await talker.wait_closed()


async def test_a_ping_is_answered_also_before_the_handshake(world: BrokerWorld) -> None:
    talker = await world.dial()
    talker.write(PING)
    assert (await talker.answer(BaseCommand.PONG)).type == BaseCommand.PONG


@pytest.mark.parametrize(
    "hostile",
    [
        struct.pack(">II", 2**31, 4),
        struct.pack(">II", 3, 0),
        struct.pack(">II", 8, 2**30) + b"xxxx",
        struct.pack(">II", 8, 4) + b"\xff\xff\xff\xff",
        struct.pack(">II", 6, 2) + b"\x08\x06",
    ],
)
async def test_hostile_bytes_end_their_own_connection_and_no_other(world: BrokerWorld, hostile: bytes) -> None:
    good, bad = await world.talker(), await world.talker()
    bad.write(hostile)
    await bad.wait_closed()
    assert (await good.producer("t")).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_name_that_is_not_utf_8_ends_its_own_connection_and_leaves_nothing_behind(
    world: BrokerWorld, caplog: pytest.LogCaptureFixture
) -> None:
    innocent, hostile = await world.talker(), await world.talker()
    subscribe = BaseCommand(type=BaseCommand.SUBSCRIBE)
    request = subscribe.subscribe
    request.topic, request.subscription, request.subType = "t", "s", CommandSubscribe.Failover
    request.consumer_id, request.request_id, request.consumer_name = 1, 5, "KKKK"
    hostile.write(spoiled(encode_command(subscribe)))
    await hostile.wait_closed()
    assert (await innocent.subscribe("t", kind=CommandSubscribe.Failover)).type == BaseCommand.SUCCESS
    assert len((await world.topic("t")).subscriptions["s"].consumers) == 1
    assert "the client broke the protocol" in caplog.text
    assert not [record for record in caplog.records if record.exc_info]


async def test_frames_that_arrive_byte_by_byte_are_understood(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    whole = PING * 3
    for byte in whole:
        talker.write(bytes((byte,)))
    for _ in range(3):
        await talker.answer(BaseCommand.PONG)


async def test_a_frame_larger_than_the_shared_buffer_is_taken(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    talker.publish(1, 0, b"x" * 3_000_000)
    talker.publish(1, 1, b"y" * 2_000_000)
    assert (await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 0
    assert (await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 1


async def test_a_silent_client_is_pinged_and_then_gone_while_one_that_answers_stays() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, keep_alive_interval_ms=30)) as world:
        silent, lively = await world.talker(), await world.talker()
        silent.answers_pings = False
        await silent.answer(BaseCommand.PING)
        await silent.wait_closed()
        await until(lambda: lively.pings >= 4, "the other one is pinged again and again")
        assert not lively.closed.is_set()
        assert world.front_end.counters.timed_out == 1


async def test_a_client_that_never_says_hello_is_closed() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, keep_alive_interval_ms=20)) as world:
        await (await world.dial()).wait_closed()


async def test_a_connection_too_many_is_told_so_and_closed() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, connections_max=1)) as world:
        await world.talker()
        refused = await world.dial()
        assert (await refused.answer(BaseCommand.ERROR)).error.error == ServerError.NotAllowedError
        await refused.wait_closed()


async def test_transactions_and_auth_challenges_are_refused_in_words_of_their_own(world: BrokerWorld) -> None:
    talker = await world.talker()
    command = BaseCommand(type=BaseCommand.NEW_TXN)
    command.newTxn.request_id = 7
    talker.send(command)
    refused = (await talker.answer(BaseCommand.NEW_TXN_RESPONSE)).newTxnResponse
    assert (refused.request_id, refused.error) == (7, ServerError.TransactionCoordinatorNotFound)
    command = BaseCommand(type=BaseCommand.TC_CLIENT_CONNECT_REQUEST)
    command.tcClientConnectRequest.request_id, command.tcClientConnectRequest.tc_id = 8, 0
    talker.send(command)
    assert (await talker.answer(BaseCommand.TC_CLIENT_CONNECT_RESPONSE)).tcClientConnectResponse.HasField("error")
    command = BaseCommand(type=BaseCommand.AUTH_RESPONSE)
    command.authResponse.client_version = "x"
    talker.send(command)
    await talker.wait_closed()
