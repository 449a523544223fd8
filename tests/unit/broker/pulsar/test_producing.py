from __future__ import annotations

import asyncio
import itertools

import pytest

from magnetar.config.broker import BrokerConfig
from magnetar.config.defaults import TopicDefaultsConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.names import TopicName
from magnetar.runtime.slices import BUDGET_S
from magnetar.testing.waiting import until
from magnetar.wire.pulsar.encode import encode_command, encode_send_head
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand, ProducerAccessMode, ServerError
from tests.unit.broker.pulsar.broker_world import BrokerWorld, Talker, batch, broker_world, message

pytestmark = pytest.mark.virtual_time

EXCLUSIVE, WAITING = ProducerAccessMode.Exclusive, ProducerAccessMode.WaitForExclusive
FENCING = ProducerAccessMode.ExclusiveWithFencing
ANSWERS = (BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)
DEDUPLICATING = BrokerConfig(deduplication=True)


def create_producer(producer_id: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.PRODUCER)
    command.producer.topic, command.producer.producer_id, command.producer.request_id = "t", producer_id, request_id
    return command


def close_producer(producer_id: int, request_id: int) -> BaseCommand:
    command = BaseCommand(type=BaseCommand.CLOSE_PRODUCER)
    command.close_producer.producer_id, command.close_producer.request_id = producer_id, request_id
    return command


async def close(talker: Talker, producer_id: int = 1) -> None:
    talker.send(close_producer(producer_id, talker.next_request()))
    await talker.answer(BaseCommand.SUCCESS)


async def test_producers_without_a_name_get_different_ones_of_the_clusters(world: BrokerWorld) -> None:
    talker = await world.talker()
    names = [(await talker.producer("t", number)).producer_success.producer_name for number in (1, 2)]
    assert names == ["standalone-0-0", "standalone-0-1"]


async def test_a_name_is_never_given_again_not_even_after_a_restart(world: BrokerWorld) -> None:
    first = (await (await world.talker()).producer("t")).producer_success.producer_name
    await world.restart()
    assert (await (await world.talker()).producer("t")).producer_success.producer_name != first


async def test_a_name_that_is_connected_is_busy_and_free_again_when_it_has_gone(world: BrokerWorld) -> None:
    one, other = await world.talker(), await world.talker()
    await one.producer("t", producer_name="me")
    assert (await other.producer("t", producer_name="me")).error.error == ServerError.ProducerBusy
    one.transport.close()
    await one.wait_closed()
    assert (await other.producer("t", producer_name="me")).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_producer_of_the_same_id_name_and_connection_succeeds_itself_with_a_higher_epoch(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await talker.producer("t", 1, producer_name="me", epoch=0)
    producer = (await world.topic("t")).producers
    session = world.front_end.sessions[0]
    session.producers.clear()  # The client has lost it: it comes back with the next epoch.
    assert (await talker.producer("t", 1, producer_name="me", epoch=1)).type == BaseCommand.PRODUCER_SUCCESS
    assert len(producer) == 1


async def test_asking_for_a_producer_that_is_there_is_answered_again(world: BrokerWorld) -> None:
    talker = await world.talker()
    first = await talker.producer("t", 1, producer_name="me")
    assert (await talker.producer("t", 1, producer_name="me")).producer_success.producer_name == (
        first.producer_success.producer_name
    )


async def test_an_exclusive_producer_keeps_others_out_for_good_or_for_now(world: BrokerWorld) -> None:
    one, other = await world.talker(), await world.talker()
    assert (await one.producer("t", producer_access_mode=EXCLUSIVE)).producer_success.topic_epoch == 0
    assert (await other.producer("t", producer_access_mode=EXCLUSIVE)).error.error == ServerError.ProducerFenced
    assert (await other.producer("t")).error.error == ServerError.ProducerBusy


async def test_one_that_waits_for_exclusive_access_is_told_so_and_let_in_when_the_other_goes(
    world: BrokerWorld,
) -> None:
    one, other = await world.talker(), await world.talker()
    await one.producer("t", producer_access_mode=EXCLUSIVE)
    queued = await other.producer("t", producer_access_mode=WAITING)
    assert not queued.producer_success.producer_ready
    await close(one)
    ready = (await other.answer(BaseCommand.PRODUCER_SUCCESS)).producer_success
    assert (ready.producer_ready, ready.topic_epoch) == (True, 1)


async def test_producers_that_wait_do_not_keep_their_connection_from_being_read() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, requests_per_connection_max=2)) as world:
        talker = await world.talker()
        await talker.producer("t", 0, producer_access_mode=EXCLUSIVE)
        for number in (1, 2, 3):
            assert not (
                await talker.producer("t", number, producer_access_mode=WAITING)
            ).producer_success.producer_ready
        await close(talker, 0)
        assert (await talker.answer(BaseCommand.PRODUCER_SUCCESS)).producer_success.producer_ready


async def test_a_producer_counts_once_towards_its_connections_limit_also_in_the_turn_in_which_it_is_made() -> None:
    async with broker_world(pulsar=PulsarConfig(port=0, producers_per_connection_max=2)) as world:
        talker = await world.talker()
        session = world.front_end.sessions[0]
        talker.send(create_producer(0, talker.next_request()))
        for _ in range(1_000):
            if session.producers:
                break  # In this turn of the loop the task that made it has not been cleared away.
            await asyncio.sleep(0)
        frame = encode_command(create_producer(1, talker.next_request()))
        session.on_received(frame, 0, len(frame))
        assert [(await talker.answer(*ANSWERS)).type for _ in range(2)] == [BaseCommand.PRODUCER_SUCCESS] * 2
        assert (await talker.producer("t", 2)).error.error == ServerError.NotAllowedError
        assert (await talker.subscribe("t")).type == BaseCommand.SUCCESS


async def test_a_consumer_counts_once_towards_its_connections_limit_and_producers_do_not() -> None:
    limits = PulsarConfig(port=0, producers_per_connection_max=1, consumers_per_connection_max=2)
    async with broker_world(pulsar=limits) as world:
        talker = await world.talker()
        await talker.producer("t", 0)
        for number in (1, 2):
            assert (await talker.subscribe("t", f"{number}", number)).type == BaseCommand.SUCCESS
        assert (await talker.subscribe("t", "3", 3)).error.error == ServerError.NotAllowedError


async def test_a_namespace_takes_as_many_topics_as_it_may() -> None:
    async with broker_world(broker=BrokerConfig(topics_per_namespace_max=1)) as world:
        talker = await world.talker()
        await talker.producer("one", 1)
        assert (await talker.producer("two", 2)).error.error == ServerError.NotAllowedError
        assert (await talker.producer("one", 3)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_fencing_producer_throws_the_other_out_which_cannot_come_back(world: BrokerWorld) -> None:
    one, other = await world.talker(), await world.talker()
    epoch = (await one.producer("t", producer_access_mode=EXCLUSIVE)).producer_success.topic_epoch
    taken = await other.producer("t", producer_access_mode=FENCING)
    assert taken.producer_success.topic_epoch == epoch + 1
    assert (await one.answer(BaseCommand.CLOSE_PRODUCER)).close_producer.producer_id == 1
    await close(other)
    again = await one.producer("t", 2, producer_access_mode=EXCLUSIVE, topic_epoch=epoch)
    assert again.error.error == ServerError.ProducerFenced


async def test_of_two_that_fence_at_the_same_moment_one_is_connected(world: BrokerWorld) -> None:
    for topic_name, first_mode in (("t", FENCING), ("u", EXCLUSIVE)):
        one, other = await world.talker(), await world.talker()
        answers = await asyncio.gather(
            one.producer(topic_name, producer_name="one", producer_access_mode=first_mode),
            other.producer(topic_name, producer_name="other", producer_access_mode=FENCING),
        )
        kinds = [answer.type for answer in answers]
        assert kinds == [BaseCommand.ERROR, BaseCommand.PRODUCER_SUCCESS]
        assert answers[0].error.error == ServerError.ProducerFenced
        assert [producer.name for producer in (await world.topic(topic_name)).producers] == ["other"]


async def test_the_epoch_of_a_topic_survives_a_restart(world: BrokerWorld) -> None:
    await (await world.talker()).producer("t", producer_access_mode=EXCLUSIVE)
    await world.restart()
    again = await (await world.talker()).producer("t", producer_access_mode=EXCLUSIVE)
    assert again.producer_success.topic_epoch == 1


async def test_a_topic_takes_as_many_producers_as_its_policies_say() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(producers_per_topic_max=1)) as world:
        talker = await world.talker()
        await talker.producer("t", 1)
        assert (await talker.producer("t", 2)).error.error == ServerError.ProducerBusy


async def test_an_initial_subscription_is_made_with_the_producer(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t", initial_subscription_name="first")
    assert list((await world.topic("t")).subscriptions) == ["first"]


# --- sending ----------------------------------------------------------------------------------------------------------


async def test_messages_of_one_read_are_stored_in_order_and_answered_in_one_write(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    before = talker.reads
    bodies = [message(b"%d" % number, number) for number in range(50)]
    frames = []
    for number, body in enumerate(bodies):
        send = BaseCommand(type=BaseCommand.SEND)
        send.send.producer_id, send.send.sequence_id = 1, number
        command = send.SerializeToString()
        size = len(command).to_bytes(4, "big")
        frames.append((4 + len(command) + len(body)).to_bytes(4, "big") + size + command + body)
    talker.write(b"".join(frames))
    receipts = [(await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt for _ in bodies]
    assert [receipt.sequence_id for receipt in receipts] == list(range(50))
    assert [receipt.message_id.entryId for receipt in receipts] == list(range(50))
    assert talker.reads - before <= 2  # One run of the log, one write; two if the journal was quicker than the rest.


async def test_a_damaged_message_is_a_checksum_error_and_the_next_one_is_taken(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    talker.publish(1, 0, b"", raw=message(b"good")[:-1] + b"X")
    talker.publish(1, 1, b"good")
    failed = (await talker.answer(BaseCommand.SEND_ERROR)).send_error
    assert (failed.sequence_id, failed.error) == (0, ServerError.ChecksumError)
    assert (await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id == 1


@pytest.mark.parametrize("domain", ["persistent", "non-persistent"])
async def test_a_message_that_begins_like_a_brokers_header_is_not_allowed_and_the_next_one_is_taken(
    world: BrokerWorld, domain: str
) -> None:
    name = f"{domain}://public/default/t"
    talker = await world.talker()
    await talker.producer(name)
    await talker.subscribe(name)
    talker.flow(10)
    talker.publish(1, 0, b"", raw=b"\x0e\x02\xff\xff\xff\xff" + bytes(100))
    assert (await talker.answer(BaseCommand.SEND_ERROR)).send_error.error == ServerError.NotAllowedError
    await talker.published(1, 1, b"next")
    _, body = await talker.message()
    assert body.endswith(b"next")
    assert world.front_end.memory.used_bytes == 0


async def test_a_message_of_a_transaction_or_with_a_given_id_is_not_allowed(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    body = message(b"x")
    for fields in ({"txnid_most_bits": 1}, {"message_id": {"ledgerId": 1, "entryId": 1}}):
        send = BaseCommand(type=BaseCommand.SEND, send={"producer_id": 1, "sequence_id": 0, **fields})
        frame = encode_command(send)
        talker.write((int.from_bytes(frame[:4], "big") + len(body)).to_bytes(4, "big") + frame[4:] + body)
        assert (await talker.answer(BaseCommand.SEND_ERROR)).send_error.error == ServerError.NotAllowedError


async def test_a_message_for_a_producer_that_never_was_ends_the_connection(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    talker.publish(9, 0, b"x")
    await talker.wait_closed()


async def test_what_came_before_a_message_for_a_producer_that_never_was_is_counted_as_any_other(
    world: BrokerWorld,
) -> None:
    talker = await world.talker()
    await talker.producer("t")
    memory = world.front_end.memory
    world.cluster.hang(0)
    bodies = [message(b"x" * 1_000, number) for number in range(20)]
    frames = [encode_send_head(1, number, 0, 1, len(body)) + body for number, body in enumerate(bodies)]
    stray = encode_send_head(9, 0, 0, 1, len(bodies[0])) + bodies[0]
    talker.write(b"".join(frames) + stray)  # One read of the socket.
    await talker.wait_closed()
    assert memory.used_bytes == sum(len(body) for body in bodies)
    world.cluster.wake(0)
    topic = await world.topic("t")
    await until(lambda: topic.log.chain.entries == len(bodies), "they are durable")
    assert memory.used_bytes == 0


async def test_a_message_for_a_producer_that_was_just_closed_is_dropped_and_nothing_else(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t", 1)
    await talker.producer("t", 2)
    await close(talker, 1)
    talker.publish(1, 0, b"late")
    assert (await talker.published(2, 0, b"x")).entryId == 0


async def test_a_producer_is_closed_when_all_it_published_is_answered(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    talker.publish(1, 0, b"x")
    talker.publish(1, 1, b"y")
    talker.send(close_producer(1, 5))
    kinds = []
    while BaseCommand.SUCCESS not in kinds:
        kinds.append((await talker.answer(BaseCommand.SEND_RECEIPT, BaseCommand.SUCCESS)).type)
    assert kinds == [BaseCommand.SEND_RECEIPT] * 2 + [BaseCommand.SUCCESS]


async def test_a_terminated_topic_disconnects_producers_and_takes_no_more(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    last = await talker.published(1, 0, b"x")
    end = await (await world.topic("t")).terminate()
    assert (end.ledger_id, end.entry_id) == (last.ledgerId, last.entryId)
    await talker.answer(BaseCommand.CLOSE_PRODUCER)
    assert (await talker.producer("t", 2)).error.error == ServerError.TopicTerminatedError


async def test_a_connection_that_waits_for_room_is_read_again_when_its_topic_is_terminated(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    topic = await world.topic("t")
    world.cluster.hang(0)
    for number in range(12_000):  # More than the writer has in flight and the connection may have pending.
        talker.publish(1, number, b"x")
    session = world.front_end.sessions[0]
    await until(lambda: session.connection.is_held, "the connection is held")
    terminating = asyncio.ensure_future(topic.terminate())
    await asyncio.sleep(0)
    terminating.cancel()  # The caller has left: the termination runs to its end.
    world.cluster.wake(0)
    await until(lambda: topic.log.is_terminated and not session.connection.is_held, "the connection is let go")
    assert (await talker.producer("t", 2)).error.error == ServerError.TopicTerminatedError


async def test_what_was_acknowledged_is_there_after_a_restart_of_the_broker(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    for number in range(5):
        await talker.published(1, number, b"%d" % number)
    await world.restart()
    reader = await world.talker()
    await reader.subscribe("t", "r", initialPosition=1)
    reader.flow(10)
    assert [(await reader.message())[1][-1:] for _ in range(5)] == [b"0", b"1", b"2", b"3", b"4"]


# --- deduplication ----------------------------------------------------------------------------------------------------


async def test_a_message_sent_again_is_answered_without_a_position_and_stored_once() -> None:
    async with broker_world(broker=DEDUPLICATING) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="me")
        first = await talker.published(1, 7, b"x")
        again = await talker.published(1, 7, b"x")
        assert (first.entryId, again.ledgerId, again.entryId) == (0, 2**64 - 1, 2**64 - 1)
        assert (await world.topic("t")).log.chain.entries == 1


async def test_duplicates_are_known_after_a_restart_from_the_snapshot_and_from_the_log() -> None:
    config = BrokerConfig(deduplication=True, deduplication_snapshot_entries=3)
    async with broker_world(broker=config) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="me")
        for number in range(5):  # Three are in a snapshot, two only in the log.
            await talker.published(1, number, b"x", messages=1)
        await world.restart()
        talker = await world.talker()
        made = await talker.producer("t", producer_name="me")
        assert made.producer_success.last_sequence_id == 4
        assert (await talker.published(1, 4, b"x")).entryId == 2**64 - 1
        assert (await talker.published(1, 5, b"x")).entryId == 0


async def test_a_batch_counts_by_its_highest_sequence_id() -> None:
    async with broker_world(broker=DEDUPLICATING) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="me")
        body = batch([b"a", b"b", b"c"])
        await talker.published(1, 0, b"", raw=body, messages=3, highest=2)
        assert (await talker.published(1, 2, b"c")).entryId == 2**64 - 1
        assert (await talker.published(1, 3, b"d")).entryId == 1


async def test_a_duplicate_of_what_is_not_durable_yet_is_an_error_and_sent_again_a_duplicate() -> None:
    async with broker_world(broker=DEDUPLICATING) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="me")
        talker.publish(1, 0, b"x")
        talker.publish(1, 0, b"x")
        kinds = {(await talker.answer(BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR)).type for _ in range(2)}
        assert kinds == {BaseCommand.SEND_RECEIPT, BaseCommand.SEND_ERROR}
        assert (await talker.published(1, 0, b"x")).entryId == 2**64 - 1


async def test_a_sequence_id_that_no_snapshot_could_hold_is_refused_and_the_topic_goes_on() -> None:
    async with broker_world(broker=DEDUPLICATING) as world:
        talker = await world.talker()
        await talker.producer("t", producer_name="me")
        too_high = [(2**63, 0), (2**64 - 1, 0), (3, 2**63)]
        for sequence_id, highest in too_high:
            talker.publish(1, sequence_id, b"x", highest=highest, messages=2)
            answer = await talker.answer(BaseCommand.SEND_ERROR, BaseCommand.SEND_RECEIPT)
            assert answer.send_error.error == ServerError.NotAllowedError
        assert (await talker.published(1, 2**63 - 1, b"x")).entryId == 0
        topic = await world.topic("t")
        assert topic.publisher.dedup is not None
        await topic.publisher.dedup.snapshot()


# --- backpressure -----------------------------------------------------------------------------------------------------


async def test_a_topic_without_room_stops_its_producers_connection_and_loses_nothing(world: BrokerWorld) -> None:
    talker = await world.talker()
    await talker.producer("t")
    world.cluster.hang(0)
    count = 12_000  # More than the writer has in flight and the connection may have pending.
    for number in range(count):
        talker.publish(1, number, b"x")
    session = world.front_end.sessions[0]
    await until(lambda: session.connection.is_held, "the connection is held")
    assert session.pending_publishes < count
    world.cluster.wake(0)
    receipts = [(await talker.answer(BaseCommand.SEND_RECEIPT)).send_receipt.sequence_id for _ in range(count)]
    assert receipts == list(range(count))
    assert not session.connection.is_held
    assert world.front_end.memory.used_bytes == 0


async def test_a_publish_rate_holds_the_connection_until_it_is_kept_again() -> None:
    async with broker_world(defaults=TopicDefaultsConfig(publish_messages_per_s=50)) as world:
        talker = await world.talker()
        await talker.producer("t")
        began = asyncio.get_running_loop().time()
        for number in range(60):
            talker.publish(1, number, b"x")
        for _ in range(60):
            await talker.answer(BaseCommand.SEND_RECEIPT)
        talker.publish(1, 60, b"x")
        await talker.answer(BaseCommand.SEND_RECEIPT)
        assert asyncio.get_running_loop().time() - began > 0.15  # 61 messages at 50 a second, the first second free.


async def test_a_backlog_beyond_its_quota_refuses_new_producers_at_once_and_lets_them_in_when_it_is_gone() -> None:
    defaults = TopicDefaultsConfig(backlog_quota_bytes=1_000, backlog_quota_policy="producer_exception")
    async with broker_world(defaults=defaults) as world:
        talker = await world.talker()
        await talker.subscribe("t")
        await talker.producer("t", 1)
        await talker.published(1, 0, bytes(2_000))
        refused = (await talker.producer("t", 2)).error
        assert refused.error == ServerError.ProducerBlockedQuotaExceededException
        assert "quota" in refused.message
        topic = await world.topic("t")
        await topic.subscriptions["s"].clear_backlog()
        assert (await talker.producer("t", 3)).type == BaseCommand.PRODUCER_SUCCESS


async def test_a_connection_with_very_many_producers_leaves_in_slices(world: BrokerWorld) -> None:
    talker, other = await world.talker(), await world.talker()
    count = 150
    for number in range(count):
        await talker.producer("t", number, producer_name=f"p-{number}")
    topic = world.broker.service.topics.find(TopicName.parse("t"))
    assert topic is not None
    looks = itertools.count()
    world.broker.service.slices.clock = lambda: next(looks) * BUDGET_S / 10
    talker.transport.close()
    for _ in range(5):
        await asyncio.sleep(0)
    assert count > len(topic.producers) > count / 2  # The loop came round before all had left.
    await other.producer("t", producer_name="another")
    await until(lambda: len(topic.producers) == 1, "the producers of the closed connection leave")
