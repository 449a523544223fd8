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
        assert done.stderr.splitlines()[-1].startswith("magnetar: error: ")
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


def test_a_backlog_of_batches_is_shown_in_messages(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("subscriptions", "create", topic, "s")
    magnetar("produce", topic, text="line\n" * 995)
    (row,) = json.loads(magnetar("subscriptions", "list", topic, "--json"))
    assert (row["backlog_messages"], row["backlog_messages_exact"]) == (995, True)
    assert 0 < row["backlog_entries"] < 995
    assert magnetar("subscriptions", "list", topic).splitlines()[1].split() == ["s", "-", "995", "0", "0"]
    explained = magnetar("explain", "s", "--topic", topic)
    assert "  backlog: 995 messages; acknowledged up to " in explained
    assert "  no-consumer: no consumer is connected; 995 messages wait\n" in explained
    assert "995 messages to deliver" in magnetar("subscriptions", "seek", topic, "s", "--to", "earliest")
    magnetar("consume", topic, "s", "--count", "1")
    assert magnetar.test.backlog() == 994
    magnetar("subscriptions", "seek", topic, "s", "--to", "-5")
    assert magnetar.test.backlog() == 5


def test_a_batch_is_peeked_at_message_by_message(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("produce", topic, "--compression", "zlib", text="one\ntwo\n")
    magnetar("produce", topic, "alone")
    magnetar("subscriptions", "create", topic, "s", "--to", "earliest")
    assert magnetar("subscriptions", "peek", topic, "s") == "one\ntwo\n"
    assert magnetar("subscriptions", "peek", topic, "s", "--number", "2") == "alone\n"


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
    magnetar("topics", "create", topic)
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
    magnetar("topics", "terminate", topic, "--yes")
    assert magnetar("read", topic, "--follow") == "a\nb\n"
    assert magnetar("consume", topic, "s", "--earliest") == "a\nb\n"
    assert "terminated" in magnetar.error("produce", topic, "c")


def test_topics_and_subscriptions_are_made_moved_explained_and_deleted(magnetar: Shell) -> None:
    namespace, topic = magnetar.test.namespace, magnetar.test.topic()
    magnetar("topics", "create", topic)
    magnetar("subscriptions", "create", topic, "s")
    magnetar("produce", topic, "a", "b")
    assert magnetar("topics", "list", namespace) == f"{topic}\n"
    assert json.loads(magnetar("topics", "stats", topic, "--json"))["msgInCounter"] == 2
    stats = magnetar("topics", "stats", topic).splitlines()
    assert stats[0] == topic
    assert any(line.split() == ["messages", "in", "2"] for line in stats)
    assert any(line.split()[:2] == ["s", "-"] for line in stats)
    internal = magnetar("topics", "internal-stats", topic).splitlines()
    assert any(line.split()[0:1] == ["s"] and line.endswith("Open") for line in internal)
    (row,) = json.loads(magnetar("subscriptions", "list", topic, "--json"))
    assert (row["subscription"], row["consumers"]) == ("s", 0)
    last_id = magnetar("topics", "last-id", topic).strip()
    explained = magnetar("explain", "s", "--namespace", namespace, "--message", last_id)
    assert "no-consumer: " in explained
    assert "kept by subscription: subscription 's' has not acknowledged it" in explained
    magnetar("subscriptions", "seek", topic, "s", "--to", "latest")
    assert json.loads(magnetar("explain", "s", "--topic", topic, "--json"))[0]["holdings"][0]["hold"] == "caught-up"
    magnetar("subscriptions", "delete", topic, "s", "--yes")
    assert "no subscription 's'" in magnetar.error("explain", "s", "--namespace", namespace)

    assert "give --yes" in magnetar.error("topics", "delete", topic)
    magnetar("topics", "delete", topic, "--yes")
    assert magnetar("topics", "list", namespace) == ""
    assert "does not exist" in magnetar.error("topics", "stats", topic)


def test_partitioned_topics_are_made_listed_and_deleted_as_one(magnetar: Shell) -> None:
    topic = magnetar.test.topic("parts")
    magnetar("topics", "create", topic, "--partitions", "2")
    magnetar("produce", topic, text="\n".join("abcd"))
    assert sorted(magnetar("read", topic).split()) == list("abcd")
    magnetar("topics", "grow", topic, "--partitions", "3")
    assert magnetar("topics", "partitions", topic) == "3\n"
    for place in ("-2", "index:1", "0:0"):
        for words in (("read", topic, "--from", place), ("subscriptions", "create", topic, "s", "--to", place)):
            assert "topic-partition-0" in magnetar.error(*words).replace("parts-", "topic-")
    magnetar("topics", "delete", topic, "--yes")
    assert magnetar("topics", "list", magnetar.test.namespace) == ""


def test_a_seek_moves_all_partitions_or_none_and_prints_where_each_is(magnetar: Shell) -> None:
    topic = magnetar.test.topic("parts")
    magnetar("topics", "create", topic, "--partitions", "2")
    magnetar("subscriptions", "create", topic, "s")
    ids = [magnetar("produce", f"{topic}-partition-{part}", "m", "--ids").strip() for part in range(2)]
    assert "partition-0, or use earliest, latest or a time" in magnetar.error(
        "subscriptions", "seek", topic, "s", "--to", ids[1]
    )
    assert "no message has the id 999:0" in magnetar.error(
        "subscriptions", "seek", f"{topic}-partition-0", "s", "--to", "999:0"
    )
    assert magnetar.test.backlog(topic) == 2
    assert magnetar("subscriptions", "seek", topic, "s", "--to", "latest").splitlines() == [
        f"{topic}-partition-{part}: at the end, nothing is left to deliver" for part in range(2)
    ]
    moved = magnetar("subscriptions", "seek", f"{topic}-partition-0", "s", "--to", ids[0])
    assert "1 message to deliver" in moved
    assert magnetar.test.backlog(topic) == 1


def test_a_message_that_does_not_exist_is_not_read(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    ids = magnetar("produce", topic, "a", "b", "--ids").split()
    magnetar("produce", topic, "c")
    ledger = ids[0].partition(":")[0]
    for place in ("99999:0", f"{ledger}:77", f"{ledger}:0:-1:9", "index:4"):
        assert "no message" in magnetar.error("read", topic, "--from", place)
    assert f"{ids[0]} to {ledger}:1" in magnetar.error("read", topic, "--from", "99999:0", "--follow")
    assert magnetar("read", topic, "--from", "index:3") == ""


def test_reading_does_not_create_a_topic_and_what_is_created_is_said(magnetar: Shell) -> None:
    topic, namespace = magnetar.test.topic("typo"), magnetar.test.namespace
    assert f"there is no topic {topic}" in magnetar.error("read", topic)
    assert magnetar("topics", "list", namespace) == ""
    assert magnetar("read", topic, "--create") == ""
    made = magnetar.run("consume", topic, "s", "--wait", "0.01")
    assert made.stderr == f"note: there was no subscription s of {topic}: it was created\n"
    assert magnetar.run("consume", topic, "s", "--wait", "0.01").stderr == ""
    other = magnetar.test.topic("other")
    made = magnetar.run("consume", other, "s", "--wait", "0.01")
    assert made.stderr == f"note: there was no topic {other}: it was created, with subscription s\n"
    for words in (("produce", "third", "a"), ("subscriptions", "create", "fourth", "s")):
        name = magnetar.test.topic(words[-2])
        made = magnetar.run(*[name if word in ("third", "fourth") else word for word in words])
        assert (made.returncode, made.stderr) == (0, f"note: there was no topic {name}: it was created\n")


def test_a_line_that_cannot_be_sent_is_named_and_those_before_it_are_stored(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    good = '{"payload": "a", "key": "k"}\n'
    error = magnetar.error("produce", topic, "--json", text=good * 2 + '{"payload": "b", "event_ms": true}\n' + good)
    assert "line 3 of the input: event_ms must be an integer" in error
    assert "2 messages before it are stored, continue with line 3" in error
    assert magnetar("read", topic) == "a\na\n"
    long = "x" * 6_000_000
    for text in (f"c\n{long}\nd\n", f"c\n{long}"):
        error = magnetar.error("produce", topic, text=text)
        assert "line 2 of the input: it exceeds the limit of 5,242,880 bytes with metadata: give --chunking" in error
        assert "1 message before it is stored, continue with line 2" in error
    almost = "x" * 5_242_870  # With its metadata it is too large.
    assert "exceeds the limit of 5,242,880 bytes with metadata" in magnetar.error("produce", topic, text=almost)
    assert "message 1: event_ms" in magnetar.error("produce", topic, "--json", '{"payload": "", "event_ms": "1"}')
    magnetar("produce", topic, "--chunking", text=f"{long}\nlast\n")
    assert magnetar("read", topic).split() == ["a", "a", "c", "c", long, "last"]
    assert "NAME=VALUE" in magnetar.error("produce", topic, "d", "--property", "=a")


def test_a_topic_in_use_is_deleted_by_force_only(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    consuming = [*MAGNETAR, "consume", topic, "s"]
    with subprocess.Popen(consuming, env=clean_environment(**magnetar.variables), stderr=subprocess.DEVNULL) as process:
        magnetar.test.until_consumers(1)
        (row,) = json.loads(magnetar("subscriptions", "list", topic, "--json"))
        assert (row["type"], row["consumers"]) == ("Exclusive", 1)
        error = magnetar.error("topics", "delete", topic, "--yes")
        assert "1 client connected: 1 consumer, 0 producers. Close them, or use force (--force" in error
        assert "--force" in magnetar.error("subscriptions", "delete", topic, "s", "--yes")
        process.send_signal(signal.SIGTERM)
        process.wait(30)
    magnetar.test.until_consumers(0)
    magnetar("subscriptions", "create", topic, "unused")
    assert magnetar("subscriptions", "list", topic).splitlines()[2].split() == ["unused", "-", "0", "0", "0"]
    magnetar("topics", "delete", topic, "--yes", "--force")


def test_tenants_and_namespaces_are_made_and_deleted(magnetar: Shell) -> None:
    magnetar("tenants", "create", "acme")
    magnetar("namespaces", "create", "acme/shop")
    assert "acme\n" in magnetar("tenants", "list")
    assert magnetar("namespaces", "list", "acme") == "acme/shop\n"
    magnetar("namespaces", "set-retention", "acme/shop", "--minutes", "5", "--megabytes", "-1")
    magnetar("namespaces", "set-ttl", "acme/shop", "--seconds", "60")
    policies = json.loads(magnetar("namespaces", "policies", "acme/shop", "--json"))
    assert policies["retention_policies"] == {"retentionTimeInMinutes": 5, "retentionSizeInMB": -1}
    assert policies["message_ttl_in_seconds"] == 60
    shown = magnetar("namespaces", "policies", "acme/shop").splitlines()
    assert shown[0] == "acme/shop"
    assert any(line.split()[:2] == ["message_ttl_in_seconds", "60"] for line in shown)
    assert "allowed clusters" in magnetar("tenants", "show", "acme")
    assert json.loads(magnetar("tenants", "show", "acme", "--json"))["adminRoles"] == []
    magnetar("namespaces", "delete", "acme/shop", "--yes")
    magnetar("tenants", "delete", "acme", "--yes")
    assert "acme" not in magnetar("tenants", "list")


def test_a_reader_of_the_output_that_leaves_has_what_it_wanted(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("topics", "create", topic)
    producing = f"seq 1 50000 | '{MAGNETAR[0]}' -m magnetar.cli.main produce {topic} --ids | head -1 > /dev/null"
    reading = f"'{MAGNETAR[0]}' -m magnetar.cli.main read {topic} | head -1"
    done = subprocess.run(
        ["bash", "-c", f"set -o pipefail; {producing} && {reading}"],
        env=clean_environment(**magnetar.variables), capture_output=True, text=True, timeout=TIMEOUT_S, check=False,
    )  # fmt: skip
    assert (done.stdout, done.stderr, done.returncode) == ("1\n", "", 0)
    assert magnetar("read", topic, "--from", "-1") == "50000\n"


def test_the_owner_of_a_topic_is_explained_without_a_subscription(magnetar: Shell) -> None:
    topic = magnetar.test.topic()
    magnetar("topics", "create", topic, "--partitions", "2")
    explained = magnetar("explain", "--topic", topic)
    assert f"{topic}-partition-1, bundle {magnetar.test.namespace}/0x" in explained
    owner = f"  owner: {magnetar.test.brokers[0]}\n  how it became the owner: it is the only broker of its cluster\n"
    assert explained.count(owner) == 2
    found = json.loads(magnetar("explain", "--topic", topic, "--json"))
    assert [each["acquired"]["how"] for each in found] == ["alone", "alone"]
    assert "give a SUBSCRIPTION, or a topic with --topic" in magnetar.error("explain")
    assert "--message needs a SUBSCRIPTION" in magnetar.error("explain", "--topic", topic, "--message", "1:2")
