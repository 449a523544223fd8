"""Three brokers, bookies and ZooKeeper as real processes, with the official client: topics move, nothing is lost."""

from __future__ import annotations

import json
import subprocess
import sys
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pulsar
import pytest

from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import MAGNETAR, BrokerProcess
from workloads.pulsar_load import NumberedLoad, connect, read_back

SETTINGS = ("metadata.session_timeout_ms=2_000", "broker.deduplication=true")
SIZE = 100
SERVICE_UNAVAILABLE = 503


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ProcessCluster]:
    with ProcessCluster(tmp_path_factory.mktemp("c"), 2, SETTINGS[:1], brokers=3, broker_settings=SETTINGS) as running:
        yield running


@pytest.fixture
def client(cluster: ProcessCluster, tmp_path: Path) -> Iterator[pulsar.Client]:
    cluster.make_whole()
    hosts = ",".join(broker.url.removeprefix("pulsar://") for broker in cluster.brokers)
    connected = connect(f"pulsar://{hosts}", tmp_path / "client.log")
    yield connected
    connected.close()


def ask(broker: BrokerProcess, path: str, method: str = "GET") -> Any:
    """The answer of the broker, or of the one that it redirects to."""
    request = urllib.request.Request(f"{broker.admin_url}{path}", method=method)
    with urllib.request.urlopen(request, timeout=30) as answer:
        body = answer.read()
    return json.loads(body) if body else None


def owner_of(cluster: ProcessCluster, topic: str, asked: BrokerProcess | None = None) -> BrokerProcess:
    """As a client finds it: while a topic changes its owner, the broker answers that it is to be asked again."""
    asked = asked or next(broker for broker in cluster.brokers if broker.is_running)
    found: list[dict[str, Any]] = []

    def is_known() -> bool:
        try:
            found.append(ask(asked, f"/lookup/v2/topic/persistent/public/default/{topic}"))
        except urllib.error.HTTPError as error:
            if error.code != SERVICE_UNAVAILABLE:
                raise
        return bool(found)

    wait_for(is_known, what=f"the owner of {topic}", timeout=60, every=0.1)
    return next(broker for broker in cluster.brokers if broker.url == found[0]["brokerUrl"])


@contextmanager
def load_on(client: pulsar.Client, topic: str) -> Iterator[NumberedLoad]:
    """Messages that are sent meanwhile. In the end, all of them exist once, and in order."""
    client.subscribe(topic, "keeps-all").close()  # Nothing is trimmed before it was read.
    load = NumberedLoad(client, topic, rate=500, size=SIZE)
    load.wait_acknowledged(100)
    yield load
    load.wait_acknowledged(100)
    load.finish()
    tally = read_back(client, topic, load, SIZE)
    assert tally.passed, tally


def test_every_broker_names_the_same_owner_of_each_topic_and_all_of_them_own_some(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    owners = {}
    for number in range(24):
        client.create_producer(f"spread-{number}").close()
        named = [owner_of(cluster, f"spread-{number}", broker).name for broker in cluster.brokers]
        assert len(set(named)) == 1, named
        owners[number] = named[0]
    assert len(set(owners.values())) == 3, owners


def test_topics_of_a_killed_broker_are_served_by_another_and_nothing_acknowledged_is_lost(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    topic = "killed"
    with load_on(client, topic) as load:
        victim = owner_of(cluster, topic)
        victim.kill()
        load.wait_acknowledged(100)
        assert owner_of(cluster, topic) is not victim


def test_topics_move_without_a_loss_when_their_namespace_is_unloaded_under_load(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    topic = "unloaded"
    with load_on(client, topic) as load:
        for _ in range(3):
            load.wait_acknowledged(100)
            ask(owner_of(cluster, topic), "/admin/v2/namespaces/public/default/unload", "PUT")
        load.wait_acknowledged(100)


def test_a_drained_broker_has_no_bundles_and_clients_continue_on_the_others(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    topic = "drained"
    with load_on(client, topic) as load:
        drained = owner_of(cluster, topic)
        command = [*MAGNETAR, "brokers", "drain", drained.broker_id, "--admin-url", drained.admin_url, "--json"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stderr
        moved = {each["bundle"]: each["brokerId"] for each in json.loads(done.stdout)}
        assert moved
        assert drained.broker_id not in moved.values()
        load.wait_acknowledged(100)
        assert owner_of(cluster, topic) is not drained
        assert not ask(drained, f"/admin/v2/brokers/standalone/{drained.broker_id}/ownedNamespaces")
    ask(drained, f"/admin/v2/magnetar/brokers/{drained.broker_id}/draining", "DELETE")


def test_a_broker_that_is_stopped_passes_its_topics_on_before_it_ends(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    topic = "passed-on"
    with load_on(client, topic) as load:
        leaving = owner_of(cluster, topic)
        assert leaving.stop() == 0
        load.wait_acknowledged(100)
        assert owner_of(cluster, topic) is not leaving


def test_a_broker_that_stood_still_past_its_session_does_not_serve_what_another_has_taken(
    cluster: ProcessCluster, client: pulsar.Client
) -> None:
    topic = "taken"
    with load_on(client, topic) as load:
        still = owner_of(cluster, topic)
        others = [broker for broker in cluster.brokers if broker is not still]
        still.pause()

        def taken() -> bool:
            return owner_of(cluster, topic, others[0]) is not still

        wait_for(taken, what="another owner of the topic", timeout=60, every=0.2)
        still.resume()
        wait_for(lambda: owner_of(cluster, topic, still) is not still, what="that the former owner knows", timeout=30)
        load.wait_acknowledged(100)


@pytest.mark.timeout(240)
def test_brokers_and_bookies_fail_at_random_and_every_message_is_there_once_and_in_order() -> None:
    program = [sys.executable, "-m", "soak.cluster_chaos", "--seed", "20261119", "--seconds", "30"]
    done = subprocess.run(program, capture_output=True, text=True, timeout=230, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    verdict = json.loads(done.stdout)
    assert verdict["acknowledged"] > 100
    assert sum(verdict["faults"].values()) > 2
