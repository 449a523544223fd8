"""The commands that talk to a running cluster, as a shell runs them; the cluster is one in this process."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Iterator

import pytest

from magnetar.testing.cluster_thread import MagnetarCluster, MagnetarTest
from tests.commands import clean_environment, run_magnetar

TIMEOUT_S = 60
MAGNETAR = [sys.executable, "-m", "magnetar.cli.main"]


@pytest.fixture(scope="module")
def cluster() -> Iterator[MagnetarCluster]:
    with MagnetarCluster(1) as cluster:
        yield cluster


class Shell:
    def __init__(self, test: MagnetarTest) -> None:
        self.test = test
        self.variables = {"MAGNETAR_URL": test.pulsar_url, "MAGNETAR_ADMIN_URL": test.admin_url}

    def run(self, *words: str, text: str = "") -> subprocess.CompletedProcess[str]:
        return run_magnetar(*words, text=text, **self.variables)

    def __call__(self, *words: str, text: str = "") -> str:
        done = self.run(*words, text=text)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def error(self, *words: str, text: str = "") -> str:
        done = self.run(*words, text=text)
        assert done.returncode in (1, 2)
        assert done.stderr.startswith("magnetar: error: ")
        return done.stderr


@pytest.fixture
def magnetar(cluster: MagnetarCluster) -> Iterator[Shell]:
    with cluster.for_test() as test:
        yield Shell(test)


def test_lines_are_produced_read_and_consumed_once(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    ids = magnetar("produce", topic, "--ids", "--key", "k", text="one\ntwo\nthree\n").splitlines()
    assert len(ids) == 3
    assert magnetar("read", topic) == "one\ntwo\nthree\n"
    assert magnetar("read", topic, "--from", "-1") == "three\n"
    assert magnetar("read", topic, "--from", ids[1], "--count", "1") == "two\n"
    assert magnetar("consume", topic, "s", "--earliest", "--count", "2") == "one\ntwo\n"
    assert magnetar("consume", topic, "s", "--count", "1", "--type", "shared") == "three\n"
    magnetar.test.until_backlog(0)
    copied = magnetar("read", topic, "--json")
    assert [json.loads(line)["key"] for line in copied.splitlines()] == ["k"] * 3
    magnetar("produce", magnetar.test.topic("copy"), "--json", text=copied)
    assert magnetar("read", magnetar.test.topic("copy"), "--from", "-1h") == "one\ntwo\nthree\n"


def test_reading_begins_with_the_message_that_was_asked_for_be_it_alone_or_in_a_batch(
    magnetar: Shell,
) -> None:
    topic = magnetar.test.topic()
    for text in ("a\n", "b\nc\n", "d\n", "e\n"):
        last = magnetar("produce", topic, "--ids", text=text).splitlines()
    assert magnetar("read", topic, "--from", "-1") == "e\n"
    assert magnetar("read", topic, "--from", last[0]) == "e\n"
    assert magnetar("read", topic, "--from", "-2") == "d\ne\n"
    assert magnetar("read", topic, "--from", "index:2") == "c\nd\ne\n"
    assert magnetar("read", topic, "--from", "index:1") == "b\nc\nd\ne\n"


def test_ids_are_printed_as_messages_are_stored_and_a_signal_ends_it_without_a_trace(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    command, environment = [*MAGNETAR, "produce", topic, "--ids"], clean_environment(**magnetar.variables)
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    with subprocess.Popen(command, text=True, env=environment, **pipes) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        for number in range(3):
            process.stdin.write(f"{number}\n")
            process.stdin.flush()
            assert process.stdout.readline()
        process.send_signal(signal.SIGINT)
        _, errors = process.communicate(timeout=30)
    assert (process.returncode, errors) == (130, "")
    assert magnetar("read", topic) == "0\n1\n2\n"


def test_the_end_of_a_terminated_topic_ends_those_who_follow_it(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("produce", topic, "a", "b")
    magnetar("topics", "terminate", topic, "--force")
    assert magnetar("read", topic, "--follow") == "a\nb\n"
    assert magnetar("consume", topic, "s", "--earliest") == "a\nb\n"
    assert "terminated" in magnetar.error("produce", topic, "c")


def test_topics_and_subscriptions_are_made_moved_explained_and_deleted(magnetar: Shell) -> None:
    namespace, topic = magnetar.test.namespace, magnetar.test.topic()
    magnetar("topics", "create", topic)
    magnetar("subscriptions", "create", topic, "s")
    magnetar("produce", topic, "a", "b")
    assert magnetar("topics", "list", namespace) == f"{topic}\n"
    assert json.loads(magnetar("topics", "stats", topic))["msgInCounter"] == 2
    (row,) = json.loads(magnetar("subscriptions", "list", topic, "--json"))
    assert (row["subscription"], row["consumers"]) == ("s", 0)
    last_id = magnetar("topics", "last-id", topic).strip()
    explained = magnetar("explain", "s", "--namespace", namespace, "--message", last_id)
    assert "no-consumer: " in explained
    assert "kept by subscription: subscription 's' has not acknowledged it" in explained
    magnetar("subscriptions", "seek", topic, "s", "--to", "latest")
    assert json.loads(magnetar("explain", "s", "--topic", topic, "--json"))[0]["holdings"][0]["hold"] == "caught-up"
    magnetar("subscriptions", "delete", topic, "s", "--force")
    assert "no subscription 's'" in magnetar.error("explain", "s", "--namespace", namespace)
    assert "say --force" in magnetar.error("topics", "delete", topic)
    magnetar("topics", "delete", topic, "--force")
    assert magnetar("topics", "list", namespace) == ""
    assert "does not exist" in magnetar.error("topics", "stats", topic)


def test_partitioned_topics_are_made_listed_and_deleted_as_one(magnetar: Shell) -> None:
    topic = magnetar.test.topic("parts")
    magnetar("topics", "create", topic, "--partitions", "2")
    magnetar("produce", topic, text="\n".join("abcd"))
    assert sorted(magnetar("read", topic).split()) == list("abcd")
    magnetar("topics", "grow", topic, "--partitions", "3")
    assert magnetar("topics", "partitions", topic) == "3\n"
    assert "partitions" in magnetar.error("read", topic, "--from", "-2")
    magnetar("topics", "delete", topic, "--force")
    assert magnetar("topics", "list", magnetar.test.namespace) == ""


def test_tenants_and_namespaces_are_made_and_deleted(magnetar: Shell) -> None:
    magnetar("tenants", "create", "acme")
    magnetar("namespaces", "create", "acme/shop")
    assert "acme\n" in magnetar("tenants", "list")
    assert magnetar("namespaces", "list", "acme") == "acme/shop\n"
    magnetar("namespaces", "set-retention", "acme/shop", "--minutes", "5", "--megabytes", "-1")
    magnetar("namespaces", "set-ttl", "acme/shop", "--seconds", "60")
    policies = json.loads(magnetar("namespaces", "policies", "acme/shop"))
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    assert policies["message_ttl_in_seconds"] == 60
    magnetar("namespaces", "delete", "acme/shop", "--force")
    magnetar("tenants", "delete", "acme", "--force")
    assert "acme" not in magnetar("tenants", "list")


def test_a_reader_of_the_output_that_leaves_gets_no_traceback(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("produce", topic, text="x\n" * 50_000)
    command = f"'{MAGNETAR[0]}' -m magnetar.cli.main read {topic} | head -1"
    done = subprocess.run(
        ["sh", "-c", command],
        env=clean_environment(**magnetar.variables), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr) == ("x\n", "")
