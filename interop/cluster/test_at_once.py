"""A broker of each make at once: lookups are redirected both ways, and bundles move back and forth under load."""

from __future__ import annotations

import pulsar
import pytest

from interop.cluster.mixed import NAMESPACE, Mixed, ask, get
from workloads.pulsar_load import NumberedLoad, ReceiptSubscriber, connect, read_back

MAKES = ("magnetar", "apache")
SIZE = 100
RATE = 300
ROUNDS = 3
TRIES_MAX = 3


def topic_in_each_bundle(mixed: Mixed, prefix: str) -> list[str]:
    """Names of topics of which each is in another bundle."""
    found: dict[str, str] = {}
    count = get(mixed.brokers["magnetar"], f"/admin/v2/namespaces/{NAMESPACE}/bundles")["numBundles"]
    for number in range(1000):
        found.setdefault(mixed.bundle(f"{prefix}-{number}"), f"{prefix}-{number}")
        if len(found) == count:
            break
    return list(found.values())


def move(mixed: Mixed, topic: str, make: str, *, asked: str) -> None:
    """Gives the topic's bundle to the broker of this make. Any lookup at the same moment may choose another owner."""
    path = f"/admin/v2/namespaces/{NAMESPACE}/{mixed.bundle(topic)}/unload"
    for _ in range(TRIES_MAX):
        ask(mixed.brokers[asked], "PUT", f"{path}?destinationBroker={mixed.brokers[make].broker_id}")
        owners = {mixed.owner(topic, asked=each) for each in MAKES}
        if owners == {make}:
            return
    raise AssertionError(f"{topic} was moved to {make} {TRIES_MAX} times, and then served by {owners}")


def test_both_brokers_name_the_same_owner_of_each_topic_and_clients_of_each_reach_it(
    mixed: Mixed, client: pulsar.Client
) -> None:
    topics = topic_in_each_bundle(mixed, "found")
    for number, topic in enumerate(topics):
        owners = {mixed.owner(topic, asked=make) for make in MAKES}
        assert len(owners) == 1, owners
        move(mixed, topic, MAKES[number % 2], asked=MAKES[number // 2 % 2])
    for make in MAKES:
        only = connect(mixed.brokers[make].url, mixed.directory / "only.log")
        for topic in topics:
            producer = only.create_producer(topic)
            producer.send(make.encode())
            producer.close()
        only.close()
    for topic in topics:
        reader = client.create_reader(topic, pulsar.MessageId.earliest)
        assert [reader.read_next(10_000).data() for _ in MAKES] == [make.encode() for make in MAKES]
        reader.close()


def test_bundles_move_back_and_forth_under_load_and_nothing_is_lost_or_doubled(
    mixed: Mixed, client: pulsar.Client
) -> None:
    topics = topic_in_each_bundle(mixed, "moved")
    subscribers = [ReceiptSubscriber(mixed.url, topic, "follows") for topic in topics[:2]]
    loads = [NumberedLoad(client, topic, rate=RATE, size=SIZE) for topic in topics]
    for number in range(ROUNDS * 2):
        for topic, load in zip(topics, loads, strict=True):
            move(mixed, topic, mixed.other(mixed.owner(topic, asked="magnetar")), asked=MAKES[number % 2])
            load.wait_acknowledged(20)
    for load in loads:
        load.finish()
    for subscriber, load in zip(subscribers, loads, strict=False):
        subscriber.finish(load.sent)
        assert not subscriber.again_in_vain
    for topic, load in zip(topics, loads, strict=True):
        tally = read_back(client, topic, load, SIZE)
        assert tally.passed, tally


@pytest.mark.parametrize("make", MAKES)
def test_topics_of_a_broker_that_is_killed_under_load_are_served_by_the_other_make(mixed: Mixed, make: str) -> None:
    """The clients look topics up at the other broker: the official one tries its brokers in turn, and waits up to a
    minute after many failures."""
    mixed.run_only(*MAKES)
    other = mixed.other(make)
    url = mixed.brokers[other].url
    client = connect(url, mixed.directory / "killed.log")
    topics = topic_in_each_bundle(mixed, f"killed-{make}")
    subscriber = ReceiptSubscriber(url, topics[0], "follows")
    loads = [NumberedLoad(client, topic, rate=RATE, size=SIZE) for topic in topics]
    for topic in topics:
        if mixed.owner(topic, asked=other) != make:
            move(mixed, topic, make, asked=other)
    for load in loads:
        load.wait_acknowledged(50)
    mixed.brokers[make].close()
    subscriber.on_killed()
    for load in loads:
        load.wait_acknowledged(50)
        load.finish()
    subscriber.finish(loads[0].sent)
    assert not subscriber.again_in_vain
    for topic, load in zip(topics, loads, strict=True):
        assert mixed.owner(topic, asked=other) == other
        tally = read_back(client, topic, load, SIZE)
        assert tally.passed, tally
    client.close()
