"""Each command of `magnetar pipeline`, run as one: what it does, what it prints, how it ends.

`archive` is in test_archive.py, `scrub` in test_scrub.py: what they need is there.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from interop.spark.messages import each_message
from interop.spark.suite.audit_world import World as AuditedRun
from interop.spark.suite.commands import pipeline
from magnetar.testing.processes.servers import StandaloneProcess

pytestmark = pytest.mark.timeout(600)

KEYS = 20


@pytest.fixture
def client(standalone: StandaloneProcess) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(standalone.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


def fill(client: pulsar.Client, topic: str) -> dict[str, bytes]:
    """Five messages of each key. Returns the last of each."""
    producer = client.create_producer(topic, block_if_queue_full=True)
    for number in range(5 * KEYS):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % KEYS}")
    producer.flush()
    producer.close()
    return {f"k{key}": b"%d" % (4 * KEYS + key) for key in range(KEYS)}


def by_key(client: pulsar.Client, topic: str, *, is_compacted: bool = False) -> list[tuple[str, bytes]]:
    found = each_message(client, topic, is_read_compacted=is_compacted)
    return sorted((each.partition_key(), each.data()) for each in found)


def test_replay_publishes_the_rows_of_a_file_and_says_by_which_job(
    standalone: StandaloneProcess, client: pulsar.Client, tmp_path: Path
) -> None:
    path, topic = tmp_path / "orders.parquet", "persistent://public/default/command-replay"
    pq.write_table(pa.table({"who": ["a", "b"], "what": ["x", "y"]}), path)

    done = pipeline(
        standalone, "replay", str(path), "command-replay", "--value-column", "what", "--key-column", "who", "--job-id",
        "orders-1", "--json",
    )  # fmt: skip

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"topic": topic, "jobId": "orders-1", "messages": 2, "alreadyDone": False}
    assert by_key(client, topic) == [("a", b"x"), ("b", b"y")]


def test_compact_writes_the_last_message_of_each_key_to_another_topic(
    standalone: StandaloneProcess, client: pulsar.Client
) -> None:
    topic, target = (f"persistent://public/default/command-compact-{which}" for which in ("from", "to"))
    last = fill(client, topic)

    done = pipeline(standalone, "compact", "command-compact-from", "--to", "command-compact-to", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"topic": topic, "to": target, "messages": KEYS, "alreadyDone": False}
    assert by_key(client, target) == sorted(last.items())


def test_compact_in_place_returns_when_the_broker_has_done_it(
    standalone: StandaloneProcess, client: pulsar.Client
) -> None:
    topic = "persistent://public/default/command-in-place"
    last = fill(client, topic)
    assert len(by_key(client, topic, is_compacted=True)) == 5 * KEYS

    done = pipeline(standalone, "compact", topic, "--in-place", "--json")

    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout) == {"topic": topic, "to": topic}
    assert by_key(client, topic, is_compacted=True) == sorted(last.items())


def test_audit_counts_what_was_lost_writes_a_report_and_fails(standalone: StandaloneProcess, tmp_path: Path) -> None:
    run = AuditedRun()
    lost = run.plant("p-0", 5, "lost")
    run.stored.remove(run.stored_of(lost))
    run.forget_received(lost)
    logs, archive = run.write(tmp_path)
    report = tmp_path / "report.html"

    done = pipeline(standalone, "audit", logs, "--archive", archive, "--report", str(report), "--json")

    assert done.returncode == 1, done.stderr
    document = json.loads(done.stdout)
    assert document["passed"] is False
    assert document["counts"]["lost"] == 1
    assert document["counts"]["acknowledged"] == 2 * run.messages
    assert document["report"] == str(report)
    assert document["verdict"] in report.read_text()
