from __future__ import annotations

import contextlib
import re
import time
from datetime import timedelta
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from tests.integration.pulsar.features.conftest import (
    PATIENCE_MS,
    QUIET_MS,
    Server,
    assert_refused,
    drain,
    has_moved,
    is_quiet,
    messages,
    require_next_count,
    send_texts,
    texts,
)

EARLIEST = pulsar.InitialPosition.Earliest


def path_of(topic: str) -> str:
    return "persistent/" + topic.removeprefix("persistent://")


# --- kinds ------------------------------------------------------------------------------------------------------------


def test_an_exclusive_subscription_has_one_consumer(client: pulsar.Client, server: Server, topic: str) -> None:
    holder = client.subscribe(topic, "s")
    assert_refused(server, topic, lambda: client.subscribe(topic, "s"), pulsar.ConsumerBusy)
    holder.close()


def test_a_subscription_cannot_change_its_kind_under_a_consumer(
    client: pulsar.Client, server: Server, topic: str
) -> None:
    holder = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert_refused(
        server, topic, lambda: client.subscribe(topic, "s", pulsar.ConsumerType.Failover), pulsar.ConsumerBusy
    )
    holder.close()


def test_shared_consumers_divide_the_messages(client: pulsar.Client, topic: str) -> None:
    consumers = [
        client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=10, initial_position=EARLIEST)
        for _ in range(2)
    ]
    sent = send_texts(client, topic, 40)
    found = drain(*consumers, count=len(sent))
    assert sorted(message.data().decode() for got in found for message in got) == sorted(sent)
    assert all(found)


@pytest.mark.quiet_owner(reason="the client drops a chunked message whose first chunk comes again")
def test_shared_consumers_with_tiny_queues_get_each_chunked_message_whole_and_once(
    client: pulsar.Client, topic: str
) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=1) for _ in range(6)]
    producer = client.create_producer(topic, chunking_enabled=True)
    sent = [bytes([number]) * (11 * 2**20) for number in range(8)]  # Three chunks each.
    for payload in sent:
        producer.send_async(payload, None)
    found: list[bytes] = []

    def all_have_come() -> bool:
        found.extend(payload for consumer in consumers for payload in next_payload(consumer))
        return len(found) >= len(sent)

    wait_for(all_have_come, what="the last message", timeout=PATIENCE_MS / 1_000)
    assert sorted(found) == sent
    assert all(is_quiet(consumer) for consumer in consumers)


def next_payload(consumer: Any) -> list[bytes]:
    """Returns the payload of the next message, if one comes."""
    try:
        message = consumer.receive(10)
    except pulsar.Timeout:
        return []
    consumer.acknowledge(message)
    return [message.data()]


@pytest.mark.quiet_owner(reason="another consumer may come back first after a move, and is active then")
def test_a_failover_consumer_takes_over_where_the_first_one_stopped(client: pulsar.Client, topic: str) -> None:
    """Which of them is the first one is the server's choice: it hashes names, to spread topics over consumers."""
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.Failover, consumer_name=name) for name in "ab"]
    sent = send_texts(client, topic, 10)
    active = next(consumer for consumer in consumers * 10 if not is_empty(consumer))
    standby = consumers[1 - consumers.index(active)]
    assert texts(active, 4) == sent[1:5]
    assert is_quiet(standby)
    active.close()
    assert texts(standby, 5) == sent[5:]


def is_empty(consumer: Any) -> bool:
    """Else the first message is taken and acknowledged."""
    try:
        consumer.acknowledge(consumer.receive(QUIET_MS))
    except pulsar.Timeout:
        return True
    return False


@pytest.mark.quiet_owner(reason="keys go to other consumers until all have come back after a move")
def test_key_shared_consumers_have_their_own_keys(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, "s", pulsar.ConsumerType.KeyShared, consumer_name=name) for name in "ab"]
    producer = client.create_producer(topic)
    for number in range(60):
        producer.send(f"{number}".encode(), partition_key=f"key-{number % 12}")
    owners: dict[str, set[int]] = {}
    numbers: dict[str, list[int]] = {}
    for which, got in enumerate(drain(*consumers, count=60)):
        for message in got:
            owners.setdefault(message.partition_key(), set()).add(which)
            numbers.setdefault(message.partition_key(), []).append(int(message.data()))
    assert len(owners) == 12
    assert all(len(who) == 1 for who in owners.values())
    assert {next(iter(who)) for who in owners.values()} == {0, 1}
    assert all(seen == sorted(seen) and len(seen) == 5 for seen in numbers.values())


def test_sticky_key_shared_consumers_have_the_ranges_they_ask_for(
    client: pulsar.Client, server: Server, topic: str
) -> None:
    def policy(first: int, last: int) -> pulsar.ConsumerKeySharedPolicy:
        return pulsar.ConsumerKeySharedPolicy(pulsar.KeySharedMode.Sticky, sticky_ranges=[(first, last)])

    kind = pulsar.ConsumerType.KeyShared
    low = client.subscribe(topic, "s", kind, key_shared_policy=policy(0, 32767))
    high = client.subscribe(topic, "s", kind, key_shared_policy=policy(32768, 65535))
    assert_refused(
        server,
        topic,
        lambda: client.subscribe(topic, "s", kind, key_shared_policy=policy(100, 200)),
        pulsar.PulsarException,
        holders=2,
    )
    producer = client.create_producer(topic)
    for number in range(40):
        producer.send(b"x", partition_key=f"key-{number}")
    drain(low, high, count=40)


def test_every_subscription_gets_every_message(client: pulsar.Client, topic: str) -> None:
    consumers = [client.subscribe(topic, name) for name in ("one", "two")]
    sent = send_texts(client, topic, 5)
    assert [texts(consumer, 5) for consumer in consumers] == [sent, sent]


# --- where it begins --------------------------------------------------------------------------------------------------


def test_a_new_subscription_begins_at_the_end_unless_asked(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "holder")
    sent = send_texts(client, topic, 3)
    late = client.subscribe(topic, "late")
    early = client.subscribe(topic, "early", initial_position=EARLIEST)
    assert texts(early, 3) == sent
    assert is_quiet(late)


def test_a_subscription_goes_on_where_it_was(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 6)
    assert texts(consumer, 3) == sent[:3]
    consumer.close()
    assert texts(client.subscribe(topic, "s"), 3) == sent[3:]


def test_an_unsubscribed_subscription_is_forgotten(client: pulsar.Client, topic: str) -> None:
    client.subscribe(topic, "holder")
    consumer = client.subscribe(topic, "s")
    send_texts(client, topic, 3)
    consumer.unsubscribe()
    assert is_quiet(client.subscribe(topic, "s"))


# --- acknowledgements -------------------------------------------------------------------------------------------------


def test_what_was_not_acknowledged_comes_again_to_the_next_consumer(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    send_texts(client, topic, 6)
    for number, message in enumerate(messages(consumer, 6)):
        if number % 2:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    assert sorted(texts(again, 3)) == ["m-0", "m-2", "m-4"]
    assert is_quiet(again)


def test_a_cumulative_acknowledgement_covers_everything_before(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s")
    sent = send_texts(client, topic, 10)
    consumer.acknowledge_cumulative(messages(consumer, 7)[-1])
    consumer.close()
    again = client.subscribe(topic, "s")
    assert texts(again, 3) == sent[7:]


def test_a_shared_subscription_has_no_cumulative_acknowledgement(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    send_texts(client, topic, 1)
    with pytest.raises(pulsar.CumulativeAcknowledgementNotAllowedError):
        consumer.acknowledge_cumulative(consumer.receive(PATIENCE_MS))


def test_a_part_of_a_batch_stays_acknowledged(client: pulsar.Client, server: Server, topic: str) -> None:
    settings = {"consumer_type": pulsar.ConsumerType.Shared, "batch_index_ack_enabled": True}
    consumer = client.subscribe(topic, "s", **settings)
    send_texts(client, topic, 10, batching_enabled=True, batching_max_publish_delay_ms=100)
    for number, message in enumerate(messages(consumer, 10)):
        if number < 4:
            consumer.acknowledge(message)
    consumer.close()
    again = client.subscribe(topic, "s", **settings)
    found = texts(again, 6)
    assert sorted(found) == [f"m-{number}" for number in range(4, 10)]


def test_the_backlog_is_what_is_not_acknowledged(client: pulsar.Client, server: Server, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    send_texts(client, topic, 8)
    for message in messages(consumer, 5):
        consumer.acknowledge(message)
    consumer.close()

    def backlog() -> int:
        stats = server.admin("GET", f"{path_of(topic)}/stats?getPreciseBacklog=true")
        return int(stats["subscriptions"]["s"]["msgBacklog"])

    wait_for(lambda: backlog() == 3, what="the backlog", timeout=15)


# --- redelivery -------------------------------------------------------------------------------------------------------


def test_a_negative_acknowledgement_brings_the_message_again_with_a_count(
    client: pulsar.Client, server: Server, topic: str
) -> None:
    """A topic that has moved counts anew."""
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, negative_ack_redelivery_delay_ms=100)
    began = time.monotonic()
    send_texts(client, topic, 1)
    count = -1
    while count < 2:
        message = consumer.receive(PATIENCE_MS)
        before, count = count, message.redelivery_count()
        require_next_count(server, topic, count, before, began)
        consumer.negative_acknowledge(message)


def test_messages_not_acknowledged_in_time_come_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, unacked_messages_timeout_ms=10_000)
    send_texts(client, topic, 1)
    consumer.receive(PATIENCE_MS)
    consumer.redeliver_unacknowledged_messages()
    assert texts(consumer, 1) == ["m-0"]


def test_a_message_that_fails_too_often_goes_to_the_dead_letters(
    client: pulsar.Client, server: Server, topic: str
) -> None:
    """After three deliveries; a topic that has moved counts anew."""
    dead = client.subscribe(f"{topic}-dead", "d", initial_position=EARLIEST)
    policy = pulsar.ConsumerDeadLetterPolicy(2, f"{topic}-dead", "d")
    consumer = client.subscribe(
        topic, "s", pulsar.ConsumerType.Shared, dead_letter_policy=policy, negative_ack_redelivery_delay_ms=100
    )
    began = time.monotonic()
    send_texts(client, topic, 1)
    deliveries, found = 0, list[bytes]()

    def is_dead() -> bool:
        nonlocal deliveries
        with contextlib.suppress(pulsar.Timeout):
            consumer.negative_acknowledge(consumer.receive(50))
            deliveries += 1
        found.extend(next_payload(dead))
        return bool(found)

    wait_for(is_dead, what="the dead letter", timeout=PATIENCE_MS / 1_000)
    assert found == [b"m-0"]
    assert deliveries == 3 or (deliveries > 3 and has_moved(server, topic, began))


# --- flow -------------------------------------------------------------------------------------------------------------


def test_a_small_queue_is_filled_again_and_again(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", receiver_queue_size=2)
    sent = send_texts(client, topic, 50)
    assert texts(consumer, 50) == sent


def test_a_queue_of_no_size_takes_one_message_at_a_time(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, receiver_queue_size=0)
    sent = send_texts(client, topic, 3)
    found = []
    for _ in range(3):
        message = consumer.receive()
        consumer.acknowledge(message)
        found.append(message.data().decode())
    assert found == sent


def test_a_listener_gets_everything_and_can_be_paused(client: pulsar.Client, server: Server, topic: str) -> None:
    found: list[str] = []

    def listen(consumer: Any, message: Any) -> None:
        found.append(message.data().decode())
        consumer.acknowledge(message)

    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared, message_listener=listen)
    sent = send_texts(client, topic, 10)
    wait_for(lambda: found == sent, what="every message")

    consumer.pause_message_listener()
    more = send_texts(client, topic, 5)

    def handed_out() -> int:
        stats = server.admin("GET", f"{path_of(topic)}/stats")
        return int(stats["subscriptions"]["s"]["unackedMessages"])

    wait_for(lambda: handed_out() == len(more), what="messages to wait in the client")
    assert found == sent
    consumer.resume_message_listener()
    wait_for(lambda: found == sent + more, what="what had waited")
    consumer.close()


# --- delay ------------------------------------------------------------------------------------------------------------


def test_a_delayed_message_comes_later_and_others_overtake_it(client: pulsar.Client, topic: str) -> None:
    consumer = client.subscribe(topic, "s", pulsar.ConsumerType.Shared)
    producer = client.create_producer(topic)
    began = time.monotonic()
    producer.send(b"later", deliver_after=timedelta(seconds=2))
    producer.send(b"now")
    assert texts(consumer, 1) == ["now"]
    assert time.monotonic() - began < 1.9
    assert texts(consumer, 1) == ["later"]
    assert time.monotonic() - began > 0.9  # Up to one tick early, which is a second.


# --- patterns ---------------------------------------------------------------------------------------------------------


def test_a_pattern_finds_the_topics_that_fit_it(client: pulsar.Client, topic: str) -> None:
    """Those that come later are for the Java client, whose discovery is quicker than this one's."""
    producers = {name: client.create_producer(f"{topic}-{name}") for name in ("one", "two", "other")}
    consumer = client.subscribe(re.compile(f"{topic}-(one|two)"), "s", initial_position=EARLIEST)
    for name, producer in producers.items():
        producer.send(name.encode())
    assert sorted(texts(consumer, 2)) == ["one", "two"]
    assert is_quiet(consumer)


def test_one_consumer_reads_several_topics(client: pulsar.Client, topic: str) -> None:
    names = [f"{topic}-{number}" for number in range(3)]
    consumer = client.subscribe(names, "s")
    for name in names:
        client.create_producer(name).send(name.encode())
    assert sorted(texts(consumer, 3)) == names
