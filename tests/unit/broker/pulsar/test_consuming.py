from __future__ import annotations

import asyncio
from typing import Any

import pytest

from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.names import TopicName
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, CommandSubscribe, MessageIdData, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, batch, broker_world

pytestmark = pytest.mark.virtual_time

SHARED, FAILOVER = CommandSubscribe.Shared, CommandSubscribe.Failover
EARLIEST = MessageIdData(ledgerId=2**64 - 1, entryId=2**64 - 1)
LATEST = MessageIdData(ledgerId=2**63 - 1, entryId=2**48 - 1)  # As the C++ client says it.


async def filled(world: BrokerWorld, count: int, topic: str = "t") -> tuple[Talker, list[MessageIdData]]:
    talker = await world.talker()
    await talker.producer(topic, 99)
    return talker, [await talker.published(99, number, b"%d" % number) for number in range(count)]


async def receive(talker: Talker, count: int) -> list[bytes]:
    return [(await talker.message())[1][-1:] for _ in range(count)]


async def test_messages_are_delivered_as_permits_allow_and_without_the_brokers_header(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 4)
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest)
    talker.flow(2)
    first, body = await talker.message()
    assert (first.entryId, body[:2]) == (0, b"\x0e\x01")
    assert await receive(talker, 1) == [b"1"]
    talker.flow(1)
    assert await receive(talker, 1) == [b"2"]
    assert (await world.topic("t")).subscriptions.require("s").consumers[0].permits == 0


async def test_a_client_that_asks_and_may_gets_the_brokers_header_too() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, expose_broker_entry_metadata=True)) as world:
        await filled(world, 1)
        curious, plain = await world.talker(supports_broker_entry_metadata=True), await world.talker()
        for number, (talker, magic) in enumerate(((curious, b"\x0e\x02"), (plain, b"\x0e\x01"))):
            await talker.subscribe("t", f"s{number}", initialPosition=CommandSubscribe.Earliest)
            talker.flow(1)
            assert (await talker.message())[1][:2] == magic


@pytest.mark.parametrize(("client", "is_closed"), [("Pulsar-CPP-v4.2.0", True), ("Pulsar-Java-v4.2.4", False)])
async def test_a_consumer_of_the_cpp_client_that_is_refused_is_closed_so_that_the_client_tries_again(
    world: BrokerWorld, client: str, is_closed: bool
) -> None:
    holder, refused = await world.talker(), await world.dial()
    await refused.connect(client=client)
    await holder.subscribe("t")
    answer = await refused.subscribe("t", consumer_id=7)
    assert answer.error.error == ServerError.ConsumerBusy
    await refused.producer("t")  # What was sent before its answer has come.
    closed = [heard.close_consumer for heard, _ in refused.received if heard.type == BaseCommand.CLOSE_CONSUMER]
    assert [each.consumer_id for each in closed] == [7] * is_closed


async def test_a_receipt_comes_when_the_acknowledgement_survives_a_restart(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 3)
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest)
    talker.flow(10)
    await receive(talker, 3)
    talker.ack(ids[0], ids[2], request_id=77)
    answer = (await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse
    assert (answer.request_id, answer.consumer_id, answer.HasField("error")) == (77, 1, False)
    cursor = (await world.topic("t")).cursors.get("s")
    assert cursor is not None
    assert cursor.is_stored
    await world.restart()
    again = await world.talker()
    await again.subscribe("t")
    again.flow(10)
    assert await receive(again, 1) == [b"1"]


async def test_many_acknowledgements_share_a_write_and_each_has_its_receipt(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 20)
    await talker.subscribe("t", kind=SHARED, initialPosition=CommandSubscribe.Earliest)
    talker.flow(100)
    await receive(talker, 20)
    for number, message_id in enumerate(ids):
        talker.ack(message_id, request_id=number)
    receipts = [(await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse.request_id for _ in ids]
    assert receipts == list(range(20))
    cursor = (await world.topic("t")).cursors.get("s")
    assert cursor is not None
    assert cursor.statistics().stores < 10


async def test_a_cumulative_acknowledgement_on_a_shared_subscription_is_refused(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 1)
    await talker.subscribe("t", kind=SHARED)
    talker.ack(ids[0], cumulative=True, request_id=5)
    assert (await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse.error == ServerError.NotAllowedError


async def test_an_acknowledgement_in_a_transaction_is_refused(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 1)
    await talker.subscribe("t")
    command = BaseCommand(type=BaseCommand.ACK)
    command.ack.consumer_id, command.ack.ack_type, command.ack.txnid_most_bits, command.ack.request_id = 1, 0, 1, 6
    command.ack.message_id.append(ids[0])
    talker.send(command)
    assert (await talker.answer(BaseCommand.ACK_RESPONSE)).ackResponse.error == ServerError.NotAllowedError


async def test_some_messages_of_a_batch_are_acknowledged_and_the_rest_comes_again_with_what_is_left(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await talker.producer("t")
    await talker.subscribe("t", kind=SHARED)
    batch_id = await talker.published(1, 0, b"", raw=batch([b"a", b"b", b"c"]), messages=3)
    talker.flow(10)
    await talker.message()
    partly = MessageIdData(ledgerId=batch_id.ledgerId, entryId=batch_id.entryId, ack_set=[0b101], batch_size=3)
    talker.ack(partly, request_id=1)
    await talker.answer(BaseCommand.ACK_RESPONSE)
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    command.redeliverUnacknowledgedMessages.message_ids.append(batch_id)
    talker.send(command)
    again = (await talker.answer(BaseCommand.MESSAGE)).message
    assert (list(again.ack_set), again.redelivery_count) == ([0b101], 1)


async def test_redelivery_on_an_exclusive_subscription_carries_the_new_epoch(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 1)
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest, consumer_epoch=1)
    talker.flow(10)
    assert (await talker.answer(BaseCommand.MESSAGE)).message.consumer_epoch == 1
    command = BaseCommand(type=BaseCommand.REDELIVER_UNACKNOWLEDGED_MESSAGES)
    command.redeliverUnacknowledgedMessages.consumer_id = 1
    command.redeliverUnacknowledgedMessages.consumer_epoch = 2
    talker.send(command)
    assert (await talker.answer(BaseCommand.MESSAGE)).message.consumer_epoch == 2


async def test_a_second_consumer_of_an_exclusive_subscription_is_busy_and_of_another_type_too(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await talker.subscribe("t", consumer_id=1)
    assert (await talker.subscribe("t", consumer_id=2)).error.error == ServerError.ConsumerBusy
    assert (await talker.subscribe("t", consumer_id=2, kind=SHARED)).error.error == ServerError.ConsumerBusy
    assert (await talker.subscribe("t", consumer_id=1)).type == BaseCommand.SUCCESS  # It exists: answered again.


async def test_the_consumers_of_a_failover_subscription_are_told_who_is_active(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.subscribe("t", consumer_id=1, kind=FAILOVER, consumer_name="a")
    first = (await talker.answer(BaseCommand.ACTIVE_CONSUMER_CHANGE)).active_consumer_change
    assert (first.consumer_id, first.is_active) == (1, True)
    await talker.subscribe("t", consumer_id=2, kind=FAILOVER, consumer_name="b", priority_level=1)
    second = (await talker.answer(BaseCommand.ACTIVE_CONSUMER_CHANGE)).active_consumer_change
    assert (second.consumer_id, second.is_active) == (2, False)


async def test_a_client_that_leaves_while_its_subscription_is_made_leaves_one_that_can_be_used(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    leaving, other = await world.talker(), await world.talker()
    await other.producer("t")
    cursors = (await world.topic("t")).cursors
    create, begun, goes_on = cursors.create, asyncio.Event(), asyncio.Event()

    async def create_slowly(*arguments: Any, **named: Any) -> Any:
        begun.set()
        await goes_on.wait()
        return await create(*arguments, **named)

    monkeypatch.setattr(cursors, "create", create_slowly)
    asked = asyncio.ensure_future(leaving.subscribe("t"))
    await begun.wait()
    leaving.transport.abort()
    with pytest.raises(ConnectionResetError):
        await asked
    goes_on.set()
    assert (await other.subscribe("t")).type == BaseCommand.SUCCESS
    assert len((await world.topic("t")).subscriptions.require("s").consumers) == 1


async def test_a_subscription_is_not_made_by_using_it_where_that_is_switched_off() -> None:
    async with broker_world(broker=BrokerConfig(auto_create_subscriptions=False)) as world:
        talker, _ = await filled(world, 1)
        assert (await talker.subscribe("t")).error.error == ServerError.SubscriptionNotFound
        assert (await talker.subscribe("t", "reader", durable=False)).type == BaseCommand.SUCCESS


async def test_limits_of_consumers_subscriptions_and_types_are_kept() -> None:
    defaults = TopicDefaultsConfig(
        consumers_per_topic_max=1, subscriptions_per_topic_max=1, subscription_types="Exclusive,Shared"
    )
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        assert (await talker.subscribe("t", kind=FAILOVER)).error.error == ServerError.NotAllowedError
        await talker.subscribe("t", "s", consumer_id=1, kind=SHARED)
        assert (await talker.subscribe("t", "s", consumer_id=2, kind=SHARED)).error.error == ServerError.ConsumerBusy
        await close(talker, 1)
        assert (await talker.subscribe("t", "other", consumer_id=3)).error.error == ServerError.NotAllowedError


async def test_a_subscription_that_is_the_brokers_own_or_has_no_name_is_not_allowed(world: BrokerWorld) -> None:
    talker = await world.talker()
    for name in ("pulsar.dedup", "__compaction", "pulsar.repl.x", " "):
        assert (await talker.subscribe("t", name)).error.error == ServerError.NotAllowedError


async def close(talker: Talker, consumer_id: int) -> None:
    command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
    command.close_consumer.consumer_id, command.close_consumer.request_id = consumer_id, talker.next_request()
    talker.send(command)
    await talker.answer(BaseCommand.SUCCESS)


async def test_what_a_consumer_has_in_hand_goes_to_another_when_its_connection_dies(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 2)
    dying, other = await world.talker(), await world.talker()
    await dying.subscribe("t", kind=SHARED, initialPosition=CommandSubscribe.Earliest)
    dying.flow(10)
    assert await receive(dying, 2) == [b"0", b"1"]
    await other.subscribe("t", kind=SHARED)
    other.flow(10)
    dying.transport.abort()
    assert sorted(await receive(other, 2)) == [b"0", b"1"]
    del talker


# --- readers, seeking, asking -----------------------------------------------------------------------------------------


async def test_a_reader_begins_at_its_message_and_leaves_nothing_behind(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 5)
    await talker.subscribe("t", "r", durable=False, start_message_id=ids[3])
    talker.flow(10)
    assert await receive(talker, 2) == [b"3", b"4"]
    await close(talker, 1)
    topic = await world.topic("t")
    await until(lambda: not topic.subscriptions, "the reader's subscription ends")
    assert topic.cursors.get("r") is None


async def test_a_reader_from_the_earliest_message_gets_all_and_from_the_latest_only_what_comes(
    world: BrokerWorld,
) -> None:
    talker, _ = await filled(world, 2)
    await talker.subscribe("t", "all", 1, durable=False, start_message_id=EARLIEST)
    talker.flow(10, 1)
    assert await receive(talker, 2) == [b"0", b"1"]
    await talker.subscribe("t", "new", 2, durable=False, start_message_id=LATEST)
    talker.flow(10, 2)
    await talker.published(99, 7, b"7")
    seen = [(await talker.answer(BaseCommand.MESSAGE)).message for _ in range(2)]
    assert {message.consumer_id: message.message_id.entryId for message in seen} == {1: 2, 2: 2}


async def test_a_durable_subscription_and_a_reader_cannot_share_a_name(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.subscribe("t", "s", 1, durable=False)
    assert (await talker.subscribe("t", "s", 2)).error.error == ServerError.NotAllowedError


async def test_seeking_disconnects_the_consumer_which_comes_back_where_it_sought(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 5)
    await talker.subscribe("t")
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, 50
    command.seek.message_id.CopyFrom(ids[2])
    talker.send(command)
    heard = [(await talker.answer(BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS)).type for _ in range(2)]
    assert heard == [BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS]
    await talker.subscribe("t")
    talker.flow(10)
    assert await receive(talker, 3) == [b"2", b"3", b"4"]


async def seek(talker: Talker, *, to: MessageIdData | None = None, publish_ms: int = 0) -> None:
    """Returns when the consumer with the number 1 is disconnected and the seek is answered."""
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, talker.next_request()
    if to is None:
        command.seek.message_publish_time = publish_ms
    else:
        command.seek.message_id.CopyFrom(to)
    talker.send(command)
    for kind in (BaseCommand.CLOSE_CONSUMER, BaseCommand.SUCCESS):
        await talker.answer(kind)


async def later_ms(world: BrokerWorld) -> int:
    """A time after all that was published, which has come."""
    wall_ms = world.cluster.runtime.entropy.wall_ms
    later = wall_ms() + 1
    await until(lambda: wall_ms() > later, "a later time")
    return later


@pytest.mark.parametrize("start", [EARLIEST, LATEST], ids=["earliest", "latest"])
async def test_a_reader_that_sought_a_time_comes_back_there_and_not_where_it_began(
    world: BrokerWorld, start: MessageIdData
) -> None:
    talker, _ = await filled(world, 3)
    between_ms = await later_ms(world)
    for number in range(3, 6):
        await talker.published(99, number, b"%d" % number)
    await talker.subscribe("t", "r", durable=False, start_message_id=start)
    await seek(talker, publish_ms=between_ms)
    await asyncio.sleep(0)  # What the seek has left for the next turn of the loop is done.
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)  # As Java's and the C++ client do.
    talker.flow(10)
    assert await receive(talker, 3) == [b"3", b"4", b"5"]


async def test_a_reader_that_sought_and_came_back_leaves_nothing_behind_when_it_goes(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 3)
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    await seek(talker, to=ids[1])
    await talker.subscribe("t", "r", durable=False, start_message_id=ids[1])
    talker.flow(10)
    assert await receive(talker, 2) == [b"1", b"2"]
    await close(talker, 1)
    topic = await world.topic("t")
    await until(lambda: not topic.subscriptions, "the reader's subscription ends")
    assert topic.cursors.get("r") is None


async def test_a_reader_that_sought_and_never_came_back_is_forgotten_after_a_while(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.broker.subscriptions.subscription.RETURN_S", 0.2)
    talker, ids = await filled(world, 3)
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    await seek(talker, to=ids[1])
    topic = await world.topic("t")
    assert list(topic.subscriptions) == ["r"]
    await until(lambda: not topic.subscriptions, "the reader's subscription ends")
    assert topic.cursors.get("r") is None


async def test_a_reader_whose_return_failed_may_still_come_back_where_it_sought(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 3)
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    topic = await world.topic("t")
    await seek(talker, to=ids[2])
    subscription = topic.subscriptions.require("r")
    subscription._fence("it is being reset to another position")
    refused = await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    assert refused.error.error == ServerError.ServiceNotReady
    subscription._unfence()
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    talker.flow(10)
    assert await receive(talker, 1) == [b"2"]


async def test_a_reader_that_began_some_time_ago_does_not_go_back_there_after_it_sought(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 4)
    asked: dict[str, Any] = {"durable": False, "start_message_rollback_duration_sec": 3600}
    await talker.subscribe("t", "r", start_message_id=EARLIEST, **asked)
    await seek(talker, to=ids[2])
    await talker.subscribe("t", "r", start_message_id=EARLIEST, **asked)
    talker.flow(10)
    assert await receive(talker, 2) == [b"2", b"3"]


async def test_a_reader_of_the_compacted_view_does_not_begin_with_it_again_after_it_sought(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 4)
    await talker.subscribe("t", "r", durable=False, read_compacted=True, start_message_id=EARLIEST)
    await seek(talker, to=ids[2])
    await talker.subscribe("t", "r", durable=False, read_compacted=True, start_message_id=EARLIEST)
    consumer = (await world.topic("t")).subscriptions.require("r").consumers[0]
    assert consumer.start == (ids[2].ledgerId, ids[2].entryId)
    talker.flow(10)
    assert await receive(talker, 2) == [b"2", b"3"]


async def test_a_topic_that_is_closed_does_not_wait_for_readers_that_sought(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 2)
    await talker.subscribe("t", "r", durable=False, start_message_id=EARLIEST)
    await seek(talker, to=ids[1])
    topic = await world.topic("t")
    subscription = topic.subscriptions.require("r")
    assert subscription.awaits_return
    await world.broker.service.topics.unload(topic.name)
    assert not subscription.awaits_return


async def test_seeking_nowhere_or_without_a_consumer_is_refused(world: BrokerWorld) -> None:
    talker = await world.talker()
    command = BaseCommand(type=BaseCommand.SEEK)
    command.seek.consumer_id, command.seek.request_id = 1, 50
    talker.send(command)
    assert (await talker.answer(BaseCommand.ERROR)).error.error == ServerError.MetadataError
    command.seek.message_publish_time = 1
    talker.send(command)
    assert (await talker.answer(BaseCommand.ERROR)).error.error == ServerError.MetadataError


async def test_the_last_message_is_told_down_to_its_place_in_a_batch(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.subscribe("t")
    assert (await last_message(talker)).ledgerId == 2**64 - 1
    await talker.producer("t")
    stored = await talker.published(1, 0, b"", raw=batch([b"a", b"b", b"c"]), messages=3)
    last = await last_message(talker)
    assert (last.ledgerId, last.entryId, last.batch_index) == (stored.ledgerId, stored.entryId, 2)


async def last_message(talker: Talker) -> MessageIdData:
    command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID)
    command.getLastMessageId.consumer_id, command.getLastMessageId.request_id = 1, talker.next_request()
    talker.send(command)
    answer = await talker.answer(BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
    return answer.getLastMessageIdResponse.last_message_id


async def test_unsubscribing_deletes_the_subscription_and_what_it_knew(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 2)
    await talker.subscribe("t")
    command = BaseCommand(type=BaseCommand.UNSUBSCRIBE)
    command.unsubscribe.consumer_id, command.unsubscribe.request_id = 1, talker.next_request()
    talker.send(command)
    assert (await talker.answer(BaseCommand.SUCCESS, BaseCommand.ERROR)).type == BaseCommand.SUCCESS
    assert not (await world.topic("t")).subscriptions
    assert not await world.cluster.store.children(TopicName.parse("t").log_path)


async def test_a_consumers_statistics_are_told_and_those_of_nobody_are_not_found(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 3)
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest, consumer_name="me")
    talker.flow(2)
    await receive(talker, 2)
    command = BaseCommand(type=BaseCommand.CONSUMER_STATS)
    command.consumerStats.consumer_id, command.consumerStats.request_id = 1, 9
    talker.send(command)
    told = (await talker.answer(BaseCommand.CONSUMER_STATS_RESPONSE)).consumerStatsResponse
    assert (told.consumerName, told.availablePermits, told.msgBacklog, told.type) == ("me", 0, 3, "Exclusive")
    command.consumerStats.consumer_id = 2
    talker.send(command)
    told = (await talker.answer(BaseCommand.CONSUMER_STATS_RESPONSE)).consumerStatsResponse
    assert told.error_code == ServerError.ConsumerNotFound


async def test_the_end_of_a_terminated_topic_is_told_to_a_consumer_that_has_read_all(world: BrokerWorld) -> None:
    talker, ids = await filled(world, 1)
    await talker.subscribe("t", initialPosition=CommandSubscribe.Earliest)
    talker.flow(10)
    await receive(talker, 1)
    talker.ack(ids[0])
    await (await world.topic("t")).terminate()
    assert (await talker.answer(BaseCommand.REACHED_END_OF_TOPIC)).reachedEndOfTopic.consumer_id == 1


async def test_a_topic_terminated_while_appends_wait_in_line_is_read_to_its_end(world: BrokerWorld) -> None:
    talker, _ = await filled(world, 1)
    topic = await world.topic("t")
    world.cluster.hang(0)
    count = 6_000  # More than the ledger's writer may have in flight.
    for number in range(1, count):
        talker.publish(99, number, b"x")
    await until(lambda: topic.log.appends_waiting, "appends wait in line")
    terminating = asyncio.ensure_future(topic.terminate())
    await asyncio.sleep(0)
    world.cluster.wake(0)
    last = await terminating
    failed = await talker.answer(BaseCommand.SEND_ERROR)
    assert failed.send_error.error == ServerError.TopicTerminatedError
    assert (await talker.producer("t", 2)).error.error == ServerError.TopicTerminatedError
    consumer = await world.talker()
    assert (await consumer.subscribe("t", initialPosition=CommandSubscribe.Earliest)).type == BaseCommand.SUCCESS
    consumer.flow(count)
    entries = [(await consumer.message())[0].entryId for _ in range(topic.log.chain.entries)]
    assert entries[-1] == last.entry_id


# --- topics that keep nothing -----------------------------------------------------------------------------------------


async def test_a_non_persistent_topic_hands_on_what_a_consumer_can_take_and_drops_the_rest(world: BrokerWorld) -> None:
    name = "non-persistent://public/default/t"
    talker = await world.talker()
    await talker.producer(name)
    await talker.subscribe(name)
    talker.flow(1)
    assert (await talker.published(1, 0, b"a")).entryId == 0
    assert await receive(talker, 1) == [b"a"]
    await talker.published(1, 1, b"b")
    talker.flow(1)
    await talker.published(1, 2, b"c")
    assert await receive(talker, 1) == [b"c"]


async def test_a_non_persistent_subscription_that_fails_keeps_nobody_else_from_a_message(
    world: BrokerWorld, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    name = "non-persistent://public/default/t"
    failing, other = await world.talker(), await world.talker()
    for number, each in enumerate((failing, other)):
        await each.subscribe(name, f"s{number}")
        each.flow(10)
    (handle,) = world.front_end.sessions[0].consumers.values()
    monkeypatch.setattr(handle, "deliver", lambda _: 1 // 0)
    await other.producer(name)
    await other.published(1, 0, b"a")
    assert await receive(other, 1) == [b"a"]
    assert world.front_end.memory.used_bytes == 0
    assert "a subscription could not take messages" in caplog.text


async def test_a_client_that_does_not_read_stops_its_deliveries_and_nobody_elses(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t", 99)
    stuck, reading = await world.talker(), await world.talker()
    for number, each in enumerate((stuck, reading)):
        await each.subscribe("t", f"s{number}")
        each.flow(100)
    stuck.transport.pause_reading()
    for number in range(8):
        await talker.published(99, number, b"x" * 1_000_000)
    assert len([await reading.message() for _ in range(8)]) == 8
    session = world.front_end.sessions[1]
    assert session.connection._unsent_bytes < 4 * 2**20
    stuck.transport.resume_reading()
    assert len([await stuck.message() for _ in range(8)]) == 8


async def test_an_entry_that_is_no_message_does_not_keep_others_from_being_delivered(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    await talker.subscribe("t")
    talker.flow(10)
    for sequence_id, metadata in enumerate((b"\xff" * 20, b"")):  # Their checksums are right.
        await talker.published(1, sequence_id, b"", raw=with_checksum(metadata, b"payload"))
    await talker.published(1, 2, b"2")
    bodies = [(await talker.message())[1][-1:]]
    while bodies[-1] != b"2":
        bodies.append((await talker.message())[1][-1:])
