"""The client's asyncio API on the same server: subscriptions."""

from __future__ import annotations

import asyncio
import time

import pulsar
import pulsar.asyncio
import pytest

from magnetar.testing.waiting import until
from tests.integration.pulsar.features.asyncio_client import (
    PATIENCE_S,
    drain,
    is_quiet,
    messages,
    place_of,
    receive,
    send_batch,
    send_texts,
    texts,
)
from tests.integration.pulsar.features.conftest import Server, clients_of, has_moved, require_next_count
from tests.integration.pulsar.features.test_subscriptions import path_of

EARLIEST = pulsar.InitialPosition.Earliest
SHARED = pulsar.ConsumerType.Shared


# --- kinds ------------------------------------------------------------------------------------------------------------


async def test_shared_consumers_divide_what_they_await(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumers = [await async_client.subscribe(topic, "s", SHARED, receiver_queue_size=10) for _ in range(2)]
    sent = await send_texts(async_client, topic, 40)
    found = await drain(*consumers, count=40)
    assert sorted(message.data().decode() for part in found for message in part) == sorted(sent)
    assert all(found)


@pytest.mark.quiet_owner(reason="another consumer may come back first after a move, and is active then")
async def test_a_failover_consumer_goes_on_for_another_that_was_awaited(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    """Which of them is the first one is the server's choice."""
    consumers = [
        await async_client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"
    ]
    waiting = {asyncio.create_task(consumer.receive()): consumer for consumer in consumers}
    sent = await send_texts(async_client, topic, 4)
    done, others = await asyncio.wait(waiting, timeout=PATIENCE_S, return_when=asyncio.FIRST_COMPLETED)
    first, second = done.pop(), others.pop()
    await waiting[first].acknowledge(first.result())
    assert first.result().data().decode() == sent[0]
    assert not second.done()
    await waiting[first].close()
    assert (await asyncio.wait_for(second, PATIENCE_S)).data().decode() == sent[1]
    assert await texts(waiting[second], 2) == sent[2:]


@pytest.mark.quiet_owner(reason="keys go to other consumers until all have come back after a move")
async def test_awaited_key_shared_consumers_have_their_own_keys(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    kind = pulsar.ConsumerType.KeyShared
    consumers = [await async_client.subscribe(topic, "s", kind, consumer_name=name) for name in "ab"]
    producer = await async_client.create_producer(topic, batching_enabled=False)
    for number in range(36):
        await producer.send(f"{number}".encode(), partition_key=f"key-{number % 12}")
    found = await drain(*consumers, count=36)
    keys = [{message.partition_key() for message in part} for part in found]
    assert (len(keys[0] | keys[1]), keys[0] & keys[1]) == (12, set())
    assert all(keys)


async def test_an_awaited_sticky_range_is_kept_and_one_that_is_taken_refused(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    def policy(first: int, last: int) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)])

    kind = pulsar.ConsumerType.KeyShared
    low = await async_client.subscribe(topic, "s", kind, key_shared_policy=policy(0, 32767))
    high = await async_client.subscribe(topic, "s", kind, key_shared_policy=policy(32768, 65535))
    while True:
        await until(lambda: clients_of(server, topic) == 2, "both are connected")
        began = time.monotonic()
        try:
            intruder = await async_client.subscribe(topic, "s", kind, key_shared_policy=policy(100, 200))
        except pulsar.asyncio.PulsarException:
            break
        assert has_moved(server, topic, began), "the third one was not refused"
        await intruder.close()
    producer = await async_client.create_producer(topic, batching_enabled=False)
    for number in range(40):
        await producer.send(b"x", partition_key=f"key-{number}")
    assert all(await drain(low, high, count=40))


async def test_a_consumer_knows_its_names_and_the_server_its_properties(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", consumer_name="taker", properties={"a": "1"})
    assert (consumer.topic(), consumer.subscription_name(), consumer.consumer_name()) == (topic, "s", "taker")
    await until(lambda: clients_of(server, topic) == 1, "it is connected")
    (known,) = server.admin("GET", f"{path_of(topic)}/stats")["subscriptions"]["s"]["consumers"]
    assert (known["consumerName"], known["metadata"]["a"]) == ("taker", "1")


# --- several topics ---------------------------------------------------------------------------------------------------


async def test_one_awaited_consumer_reads_several_topics(async_client: pulsar.asyncio.Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    consumer = await async_client.subscribe(names, "s")
    for name in names:
        await (await async_client.create_producer(name)).send(name.encode())
    assert sorted(await texts(consumer, 3)) == names


async def test_a_pattern_is_awaited_with_the_topics_that_fit_it(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    producers = {name: await async_client.create_producer(f"{topic}-{name}") for name in ("one", "two", "other")}
    consumer = await async_client.subscribe(f"{topic}-(one|two)", "s", initial_position=EARLIEST, is_pattern_topic=True)
    for name, producer in producers.items():
        await producer.send(name.encode())
    assert sorted(await texts(consumer, 2)) == ["one", "two"]
    assert await is_quiet(consumer)
    with pytest.raises(ValueError, match="pattern"):
        await async_client.subscribe([topic], "s", is_pattern_topic=True)


# --- acknowledgements -------------------------------------------------------------------------------------------------


async def test_an_acknowledgement_is_kept(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    await send_texts(async_client, topic, 4)
    await consumer.acknowledge_cumulative((await messages(consumer, 2))[-1])
    await consumer.close()
    again = await async_client.subscribe(topic, "s")
    assert await texts(again, 2) == ["m-2", "m-3"]


async def test_what_was_awaited_and_not_acknowledged_comes_again(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED)
    await send_texts(async_client, topic, 6)
    for number, message in enumerate(await messages(consumer, 6)):
        if number % 2:
            await consumer.acknowledge(message.message_id())
    await consumer.close()
    again = await async_client.subscribe(topic, "s", SHARED)
    assert sorted(await texts(again, 3)) == ["m-0", "m-2", "m-4"]
    assert await is_quiet(again)


async def test_a_shared_subscription_refuses_an_awaited_cumulative_acknowledgement(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED)
    await send_texts(async_client, topic, 1)
    with pytest.raises(pulsar.asyncio.PulsarException) as refused:
        await consumer.acknowledge_cumulative(await receive(consumer))
    assert refused.value.error() == pulsar.Result.CumulativeAcknowledgementNotAllowedError


async def test_an_awaited_part_of_a_batch_stays_acknowledged(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    await send_batch(async_client, topic, 10)
    for message in (await messages(consumer, 10))[:4]:
        await consumer.acknowledge(message)
    await consumer.close()
    again = await async_client.subscribe(topic, "s", SHARED, batch_index_ack_enabled=True)
    assert sorted(await texts(again, 6)) == [f"m-{number}" for number in range(4, 10)]


async def test_many_receives_and_acknowledgements_may_be_awaited_at_once(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED, receiver_queue_size=5)
    receiving = [asyncio.create_task(consumer.receive()) for _ in range(50)]
    sent = await send_texts(async_client, topic, 50)
    found = await asyncio.wait_for(asyncio.gather(*receiving), PATIENCE_S)
    assert sorted(message.data().decode() for message in found) == sorted(sent)
    await asyncio.gather(*map(consumer.acknowledge, found))
    await consumer.close()

    def backlog() -> int:
        stats = server.admin("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    await until(lambda: backlog() == 0, "all are acknowledged")


# --- redelivery -------------------------------------------------------------------------------------------------------


async def test_an_awaited_negative_acknowledgement_brings_the_message_again_with_a_count(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED, negative_ack_redelivery_delay_ms=100)
    await send_texts(async_client, topic, 1)
    began, count = time.monotonic(), -1
    while count < 2:
        message = await receive(consumer)
        before, count = count, message.redelivery_count()
        require_next_count(server, topic, count, before, began)
        await consumer.negative_acknowledge(message)


async def test_what_is_unacknowledged_is_asked_for_again(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s", SHARED)
    await send_texts(async_client, topic, 1)
    await receive(consumer)
    consumer.redeliver_unacknowledged_messages()
    assert await texts(consumer, 1) == ["m-0"]


async def test_an_awaited_message_that_fails_too_often_goes_to_the_dead_letters(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    """After three deliveries; a topic that has moved counts anew."""
    dead = await async_client.subscribe(f"{topic}-dead", "d", initial_position=EARLIEST)
    consumer = await async_client.subscribe(
        topic,
        "s",
        SHARED,
        dead_letter_policy=pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "d"),
        negative_ack_redelivery_delay_ms=100,
    )
    began, deliveries = time.monotonic(), 0

    async def refuse() -> None:
        nonlocal deliveries
        while True:
            await consumer.negative_acknowledge(await consumer.receive())
            deliveries += 1

    refusing = asyncio.create_task(refuse())
    await send_texts(async_client, topic, 1)
    assert (await receive(dead)).data() == b"m-0"
    refusing.cancel()
    await asyncio.wait([refusing])
    await consumer.close()
    assert deliveries == 3 or (deliveries > 3 and has_moved(server, topic, began))


# --- places -----------------------------------------------------------------------------------------------------------


async def test_an_awaited_subscription_begins_at_the_end_unless_asked(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    sent = await send_texts(async_client, topic, 3)
    early = await async_client.subscribe(topic, "early", initial_position=EARLIEST)
    late = await async_client.subscribe(topic, "late")
    assert await texts(early, 3) == sent
    assert await is_quiet(late)


async def test_a_subscription_is_forgotten_when_unsubscribing_was_awaited(
    async_client: pulsar.asyncio.Client, server: Server, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s")
    assert server.admin("GET", f"{path_of(topic)}/subscriptions") == ["s"]
    await consumer.unsubscribe()
    assert server.admin("GET", f"{path_of(topic)}/subscriptions") == []


async def test_a_consumer_seeks(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    sent = await send_texts(async_client, topic, 3)
    between_ms = int(time.time() * 1000) + 1  # The broker goes by its own clock.
    await until(lambda: time.time() * 1000 > between_ms, "a later time")
    await send_texts(async_client, topic, 2)
    found = await messages(consumer, 5)
    await consumer.acknowledge_cumulative(found[-1])

    await consumer.seek(place_of(found[0].message_id()))
    assert await texts(consumer, 4) == [*sent[1:], "m-0", "m-1"]
    await consumer.seek(between_ms)
    assert await texts(consumer, 2) == ["m-0", "m-1"]
    await consumer.seek(place_of(pulsar.MessageId.earliest))
    assert await texts(consumer, 5) == [*sent, "m-0", "m-1"]
    with pytest.raises(ValueError, match="invalid messageid"):
        await consumer.seek("earliest")
    await consumer.seek(place_of(pulsar.MessageId.earliest))
    await consumer.seek(place_of(pulsar.MessageId.latest))
    assert await is_quiet(consumer)


async def test_an_awaited_seek_begins_with_its_message_if_asked(
    async_client: pulsar.asyncio.Client, topic: str
) -> None:
    consumer = await async_client.subscribe(topic, "s", start_message_id_inclusive=True)
    await send_texts(async_client, topic, 4)
    found = await messages(consumer, 4)
    await consumer.seek(place_of(found[2].message_id()))
    assert await texts(consumer, 2) == ["m-2", "m-3"]


async def test_the_last_message_id_is_awaited(async_client: pulsar.asyncio.Client, topic: str) -> None:
    consumer = await async_client.subscribe(topic, "s")
    producer = await async_client.create_producer(topic)
    for number in range(3):
        last = await producer.send(f"m-{number}".encode())
    found = await consumer.get_last_message_id()
    assert (found.ledger_id(), found.entry_id()) == (last.ledger_id(), last.entry_id())
