"""The pytest plugin, as its users run it: pytest in a process of its own, on a folder with one test file."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from magnetar.testing.processes.child import process_exists

USERS_TESTS = """
import os
import time

import confluent_kafka
import pulsar
import pytest


@pytest.fixture(scope="session")
def client(pulsar_url):
    client = pulsar.Client(pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


def test_the_first_one_publishes_in_under_a_second(request):
    began = time.monotonic()
    client = request.getfixturevalue("client")
    magnetar = request.getfixturevalue("magnetar")
    client.create_producer(magnetar.topic()).send(b"hello")
    print(f"first publish after {time.monotonic() - began:.3f} s", flush=True)


def test_messages_go_round_and_the_backlog_becomes_empty(client, magnetar):
    consumer = client.subscribe(magnetar.topic(), "s")
    producer = client.create_producer(magnetar.topic())
    for number in range(10):
        producer.send(b"%d" % number)
    assert magnetar.backlog() == 10
    for number in range(10):
        message = consumer.receive(5_000)
        assert message.data() == b"%d" % number
        consumer.acknowledge(message)
    magnetar.until_backlog(0)
    magnetar.until_consumers(1, "topic", "s")


def test_a_bookie_is_killed_and_nothing_acknowledged_is_lost(client, magnetar):
    reader = client.create_reader(magnetar.topic(), pulsar.MessageId.earliest)
    producer = client.create_producer(magnetar.topic())
    producer.send(b"before")
    magnetar.kill(0)
    producer.send(b"after")
    assert [reader.read_next(5_000).data() for _ in range(2)] == [b"before", b"after"]


def test_a_kafka_client_reads_what_it_wrote_in_a_group(kafka_bootstrap):
    producer = confluent_kafka.Producer({"bootstrap.servers": kafka_bootstrap})
    producer.produce("from-kafka", b"hello")
    assert producer.flush(10) == 0
    settings = {"bootstrap.servers": kafka_bootstrap, "group.id": "g", "auto.offset.reset": "earliest"}
    consumer = confluent_kafka.Consumer(settings)
    consumer.subscribe(["from-kafka"])
    assert consumer.poll(20).value() == b"hello"
    consumer.close()


def test_every_test_has_a_namespace_and_all_bookies(magnetar, magnetar_cluster, pulsar_namespace, admin_url):
    assert magnetar.namespace == pulsar_namespace
    assert all(node.is_running for node in magnetar_cluster.cluster.bookies.nodes)
    assert admin_url == magnetar.admin_url
    with pytest.raises(AssertionError, match="consumers"):
        magnetar.until_consumers(1, seconds=0.01)
"""


def run_pytest(directory: Path, *options: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "pytest", "-p", "magnetar.testing.plugin", "-q", "-s", *options, str(directory)],
        capture_output=True, text=True, timeout=100, check=False, cwd=directory,
        env={**os.environ, "PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", **(env or {})},
    )  # fmt: skip


def test_a_users_tests_publish_receive_and_kill_on_the_plugins_cluster(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(USERS_TESTS)
    done = run_pytest(tmp_path)
    assert "5 passed" in done.stdout, done.stdout + done.stderr


def test_settings_and_the_number_of_bookies_come_from_the_configuration_of_pytest(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text(
        "[pytest]\nmagnetar_bookies = 1\nmagnetar_settings =\n  broker.deduplication=true\n  broker.cluster=mine\n"
    )
    (tmp_path / "test_users.py").write_text(
        "def test_it(magnetar, magnetar_cluster):\n"
        "    config = magnetar_cluster.cluster.config\n"
        "    assert (len(magnetar.bookies), config.broker.deduplication) == (1, True)\n"
        "    assert config.broker.cluster == 'mine'\n"
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr


USERS_TESTS_OF_BROKERS = """
import pulsar
import pytest


@pytest.fixture(scope="session")
def client(pulsar_url):
    client = pulsar.Client(pulsar_url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield client
    client.close()


@pytest.mark.parametrize("fault", ["kill", "expire_session", "pause"])
def test_nothing_acknowledged_is_lost_when_the_owner_of_a_topic_fails(client, magnetar, fault):
    producer = client.create_producer(magnetar.topic("t"))
    producer.send(b"before")
    getattr(magnetar, fault)(magnetar.owner_of("t"))
    if fault == "pause":
        magnetar.resume(magnetar.brokers[0])
        magnetar.resume(magnetar.brokers[1])
    producer.send(b"after")
    reader = client.create_reader(magnetar.topic("t"), pulsar.MessageId.earliest)
    assert [reader.read_next(20_000).data() for _ in range(2)] == [b"before", b"after"]


def test_every_test_has_all_brokers(magnetar, magnetar_cluster):
    assert len(magnetar.brokers) == 2
    assert all(node.is_reached for node in magnetar_cluster.cluster.brokers)
    magnetar.partition(magnetar.owner_of(), magnetar.bookies[0])
    magnetar.heal()
"""


def test_a_users_tests_kill_and_pause_brokers(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmagnetar_brokers = 2\n")
    (tmp_path / "test_users.py").write_text(USERS_TESTS_OF_BROKERS)
    done = run_pytest(tmp_path)
    assert "4 passed" in done.stdout, done.stdout + done.stderr


def test_a_wrong_number_of_brokers_is_explained(tmp_path: Path) -> None:
    (tmp_path / "pytest.ini").write_text("[pytest]\nmagnetar_brokers = none\n")
    (tmp_path / "test_users.py").write_text("def test_it(magnetar):\n    assert False\n")
    done = run_pytest(tmp_path)
    assert "magnetar_brokers is 'none': write a number of brokers, at least 1" in done.stdout, done.stdout + done.stderr


def test_workers_of_xdist_have_clusters_and_namespaces_of_their_own(tmp_path: Path) -> None:
    """xdist gives each worker's process a name; two processes with names are what it comes to."""
    (tmp_path / "test_users.py").write_text(
        "import os\n\n\n"
        "def test_it(magnetar):\n    print('seen', os.getpid(), magnetar.namespace, magnetar.pulsar_url)\n"
    )
    seen = []
    for worker in ("gw0", "gw1"):
        done = run_pytest(tmp_path, "--basetemp", str(tmp_path / worker), env={"PYTEST_XDIST_WORKER": worker})
        assert "1 passed" in done.stdout, done.stdout + done.stderr
        seen.append(next(line for line in done.stdout.splitlines() if "seen" in line).split("seen ")[1].split())
    assert [namespace for _, namespace, _ in seen] == ["public/gw0-1", "public/gw1-1"]
    assert seen[0][2] != seen[1][2]
    assert not any(process_exists(int(pid)) for pid, _, _ in seen)


def test_the_plugin_costs_a_session_without_its_fixtures_no_import_of_the_broker(tmp_path: Path) -> None:
    (tmp_path / "test_users.py").write_text(
        "import sys\n\n\ndef test_it():\n    assert not [name for name in sys.modules if 'magnetar.broker' in name]\n"
    )
    done = run_pytest(tmp_path)
    assert "1 passed" in done.stdout, done.stdout + done.stderr
