"""Sessions of brokers with a real ZooKeeper that end, or seem to, under load. Afterwards the ledgers are read.

Each test sends numbered messages with deduplication, and acknowledges them with receipts. In the end: every message is
stored once and in order; the receipts of messages are exactly the entries on the bookies, so that never two brokers
acknowledged for one topic; and nothing whose acknowledgement had a receipt comes again.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from typing import Any

import pulsar
import pytest
from kazoo.client import KazooClient

from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BrokerProcess
from magnetar.testing.processes.zookeeper import ZooKeeperEnsemble
from tests.integration.cluster.distant import DistantBroker, distant_brokers
from workloads.admin_http import ask
from workloads.pulsar_load import NumberedLoad, ReceiptSubscriber, connect, number_of, read_back
from workloads.stored_topic import problems_of, read_stored

SETTINGS = ("metadata.session_timeout_ms=1_500", "broker.deduplication=true")
STOPS = "broker.session_expired_policy=shutdown"
SIZE, RATE = 100, 300
PATIENCE_S = 60.0
QUIET_MS = 400
LOST_WITHIN_S = 1.0
SESSION_AFTER_KILL_S = 6
NAMESPACE = "public/default"


class World:
    """A cluster, as a test asks it."""

    def __init__(self, cluster: ProcessCluster, directory: Path) -> None:
        self.cluster = cluster
        self.plain = cluster.brokers[0]
        self.directory = directory

    @property
    def url(self) -> str:
        return "pulsar://" + ",".join(each.url.removeprefix("pulsar://") for each in self.cluster.brokers)

    def make_whole(self) -> None:
        """Returns when all brokers run and know each other."""
        self.cluster.make_whole()
        expected = sorted(each.broker_id for each in self.cluster.brokers)
        for each in self.cluster.brokers:
            self.wait(lambda each=each: sorted(self.get(each, "/admin/v2/brokers")) == expected, "all brokers")  # type: ignore[misc]

    def get(self, broker: BrokerProcess, path: str) -> Any:
        return ask(broker.admin_url, "GET", path, patience_s=PATIENCE_S)

    def wait(self, condition: Callable[[], bool], what: str) -> None:
        wait_for(condition, what=what, timeout=PATIENCE_S, every=0.05)

    def bundle(self, topic: str) -> str:
        return str(self.get(self.plain, f"/lookup/v2/topic/persistent/{NAMESPACE}/{topic}/bundle"))

    def owner(self, topic: str, asked: BrokerProcess | None = None) -> BrokerProcess:
        found = self.get(asked or self.plain, f"/lookup/v2/topic/persistent/{NAMESPACE}/{topic}")
        return next(each for each in self.cluster.brokers if each.url == found["brokerUrl"])

    def move(self, topic: str, to: BrokerProcess) -> None:
        def is_moved() -> bool:
            if self.owner(topic) is to:
                return True
            path = f"/admin/v2/namespaces/{NAMESPACE}/{self.bundle(topic)}/unload?destinationBroker={to.broker_id}"
            ask(self.plain.admin_url, "PUT", path, patience_s=PATIENCE_S)
            return self.owner(topic) is to

        self.wait(is_moved, f"{topic} on {to.name}")

    def node_owner(self, topic: str) -> int | None:
        """The session that owns the node of the topic's bundle; None if there is no node."""
        client = KazooClient(self.cluster.metadata.removeprefix("zk://"))
        client.start(timeout=PATIENCE_S)
        try:
            found = client.exists(f"/namespace/{NAMESPACE}/{self.bundle(topic)}")
            return None if found is None else int(found.ephemeralOwner)
        finally:
            client.stop()
            client.close()

    def loaded(self, broker: BrokerProcess) -> set[str]:
        """The topics that a broker has open, without asking who owns them."""
        found = ask(broker.admin_url, "GET", "/admin/v2/broker-stats/topics")
        bundles = found.get(NAMESPACE, {}).values()
        return {topic.rpartition("/")[2] for bundle in bundles for topic in bundle.get("persistent", {})}


class DistantWorld(World):
    """Has three brokers: one with a plain connection to ZooKeeper, and one for each policy with a proxy."""

    def __init__(self, cluster: ProcessCluster, distant: list[DistantBroker], directory: Path) -> None:
        super().__init__(cluster, directory)
        self.reconnects, self.stops = distant

    def make_whole(self) -> None:
        for each in (self.reconnects, self.stops):
            each.proxy.mend()
        super().make_whole()


@pytest.fixture(scope="module")
def running(tmp_path_factory: pytest.TempPathFactory) -> Iterator[DistantWorld]:
    directory = tmp_path_factory.mktemp("s")
    cluster = ProcessCluster(directory, 2, SETTINGS[:1], brokers=1, broker_settings=SETTINGS)
    settings = {"reconnects": SETTINGS, "stops": (*SETTINGS, STOPS)}
    with distant_brokers(cluster, directory, settings) as distant, cluster:
        yield DistantWorld(cluster, distant, directory)


@pytest.fixture
def world(running: DistantWorld) -> DistantWorld:
    running.make_whole()
    return running


class Load:
    """A producer and a consumer of one topic, from the beginning to the verdict."""

    def __init__(self, world: World, topic: str) -> None:
        self.world = world
        self.topic = topic
        self._client = connect(world.url, world.directory / "client.log")
        self._client.subscribe(topic, "keeps-all").close()  # Nothing is trimmed before it was read.
        self._subscriber = ReceiptSubscriber(world.url, topic, "follows")
        self._load = NumberedLoad(self._client, topic, rate=RATE, size=SIZE)
        self.wait_progress()

    def wait_progress(self, messages: int = 50) -> None:
        self._load.wait_acknowledged(messages)

    def on_taken(self) -> None:
        """Another broker has the topic: nothing whose acknowledgement has a receipt by now may come again."""
        self._subscriber.on_killed()

    def check(self) -> None:
        self.wait_progress()
        self._load.finish()
        self._subscriber.finish(self._load.sent)
        assert not self._subscriber.again_in_vain
        tally = read_back(self._client, self.topic, self._load, SIZE)
        assert tally.passed, tally
        path = f"/admin/v2/persistent/{NAMESPACE}/{self.topic}/unload"
        ask(self.world.plain.admin_url, "PUT", path, patience_s=PATIENCE_S)
        assert not self._acknowledged_messages_that_come_again()
        self._client.close()
        assert problems_of(read_stored(self.world.cluster.metadata, self.topic), self._load.receipts) == []

    def _acknowledged_messages_that_come_again(self) -> list[int]:
        again = []
        consumer = self._client.subscribe(self.topic, "follows")
        while True:
            try:
                number = number_of(consumer.receive(QUIET_MS).data())
            except pulsar.Timeout:
                return again
            if number in self._subscriber.receipts:
                again.append(number)


@contextmanager
def load_on(world: World, topic: str, owner: BrokerProcess) -> Iterator[Load]:
    load = Load(world, topic)
    world.move(topic, owner)
    load.wait_progress()
    yield load
    load.check()


def cut_until_expired(world: World, broker: DistantBroker, load: Load) -> None:
    """The broker serves on, since it cannot know whether its session lives."""
    before = world.node_owner(load.topic)
    assert before is not None
    broker.proxy.cut()
    load.wait_progress()
    world.wait(lambda: world.node_owner(load.topic) != before, "the end of the session")


def seconds_between(log: Path, first: str, second: str) -> float:
    """Between the last lines of a log with these messages."""
    found: dict[str, datetime] = {}
    for line in log.read_text().splitlines():
        if line.startswith("{"):
            entry = json.loads(line)
            found[entry["message"]] = datetime.fromisoformat(entry["ts"])
    beginnings = {
        word: next(ts for message, ts in found.items() if message.startswith(word)) for word in (first, second)
    }
    return (beginnings[second] - beginnings[first]).total_seconds()


def test_a_broker_that_reconnects_keeps_a_bundle_that_no_other_has_taken(world: DistantWorld) -> None:
    owner = world.reconnects
    with load_on(world, "kept", owner) as load:
        cut_until_expired(world, owner, load)
        owner.proxy.mend()
        world.wait(lambda: world.node_owner(load.topic) is not None, "a node of the new session")
        load.wait_progress()
        assert world.owner(load.topic) is owner
        assert load.topic in world.loaded(owner)


def test_a_broker_that_reconnects_unloads_at_once_what_another_has_taken(world: DistantWorld) -> None:
    owner = world.reconnects
    with load_on(world, "lost", owner) as load:
        cut_until_expired(world, owner, load)
        taker = world.owner(load.topic)
        assert taker is not owner
        load.on_taken()
        load.wait_progress()
        owner.proxy.mend()
        world.wait(lambda: load.topic not in world.loaded(owner), "the unload at the former owner")
        world.wait(lambda: world.owner(load.topic, owner) is taker, "that the former owner knows")
        assert seconds_between(owner.log, "the session has expired", "a bundle was lost") < LOST_WITHIN_S


@pytest.mark.parametrize("is_taken", [False, True], ids=["free", "taken"])
def test_a_broker_that_stops_when_its_session_has_expired_leaves_its_topics_to_others(
    world: DistantWorld, is_taken: bool
) -> None:
    owner = world.stops
    with load_on(world, f"left-{is_taken}", owner) as load:
        cut_until_expired(world, owner, load)
        if is_taken:
            assert world.owner(load.topic) is not owner
            load.on_taken()
        owner.proxy.mend()
        world.wait(lambda: not owner.is_running, "the end of the broker")
        load.on_taken()
        load.wait_progress()
        assert world.owner(load.topic) is not owner


def test_a_broker_that_stood_still_past_its_session_acknowledges_only_what_is_stored(
    world: DistantWorld,
) -> None:
    owner = world.reconnects
    with load_on(world, "still", owner) as load:
        before = world.node_owner(load.topic)
        owner.pause()
        world.wait(lambda: world.node_owner(load.topic) != before, "the end of the session")
        taker = world.owner(load.topic)
        assert taker is not owner
        load.on_taken()
        owner.resume()
        world.wait(lambda: load.topic not in world.loaded(owner), "the unload at the former owner")
        load.wait_progress()
        assert world.owner(load.topic, owner) is taker


def test_brokers_serve_on_while_zookeeper_is_started_again(world: DistantWorld) -> None:
    with load_on(world, "restarted", world.plain) as load:
        world.cluster.zookeeper.kill()
        load.wait_progress()
        world.cluster.zookeeper.start()
        load.wait_progress()
        world.make_whole()
        world.move(load.topic, world.reconnects)


def test_brokers_serve_on_when_an_ensemble_has_lost_its_leader(tmp_path: Path) -> None:
    with ProcessCluster(tmp_path, 2, SETTINGS[:1], brokers=2, broker_settings=SETTINGS, zookeepers=3) as cluster:
        world = World(cluster, tmp_path)
        with load_on(world, "led", cluster.brokers[1]) as load:
            ensemble = cluster.zookeeper
            assert isinstance(ensemble, ZooKeeperEnsemble)
            next(server for server in ensemble.servers if server.mode() == "leader").kill()
            load.wait_progress()
            world.move(load.topic, cluster.brokers[0])
            load.wait_progress()


def test_new_clients_of_a_broker_that_was_killed_and_started_again_wait_for_the_end_of_its_former_session(
    tmp_path: Path,
) -> None:
    settings = (f"metadata.session_timeout_ms={SESSION_AFTER_KILL_S * 1_000}",)
    with ProcessCluster(tmp_path, 2, brokers=2, broker_settings=settings) as cluster:
        world = World(cluster, tmp_path)
        world.make_whole()
        asked, owner = cluster.brokers
        client = connect(asked.url, tmp_path / "client.log")
        client.create_producer("killed").close()
        world.move("killed", owner)
        before = world.node_owner("killed")
        owner.kill()
        owner.start()
        consumer = client.subscribe("killed", "new")
        client.create_producer("killed").send(b"first")
        assert consumer.receive(10_000).data() == b"first"
        assert world.node_owner("killed") != before
        client.close()
