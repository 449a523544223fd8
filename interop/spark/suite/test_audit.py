"""The audit on a local Spark: faults planted by hand, logs of the official client, and a topic read as it is stored."""

from __future__ import annotations

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

from interop.spark.suite.audit_world import ACK_US, DELIVERY_US, PRODUCERS, SUBSCRIPTIONS, TOPIC, World
from interop.spark.suite.http import call
from magnetar.errors import AuditInputError
from magnetar.spark.pipelines.audit.figures import bin_expression
from magnetar.spark.pipelines.audit.run import AuditOptions, AuditResult, Identity, Order, run
from magnetar.spark.pipelines.audit.values import FAULTS, bin_of, whole_topic
from magnetar.testing.audit_clients import PulsarClient
from magnetar.testing.audit_log import AuditLog

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from magnetar.testing.processes.servers import StandaloneProcess

NAMES = tuple(fault.name for fault in FAULTS)
OTHERS = ("in_doubt", "expired")


def audited(spark: SparkSession, world: World, directory: Path, **options: Any) -> AuditResult:
    logs, archive = world.write(directory)
    return run(spark, AuditOptions(logs=(logs,), archive=archive, **options))


def faults_of(result: AuditResult) -> dict[tuple[str, int], set[str]]:
    """By message; only those that have any."""
    rows = [row.asDict() for row in result.verdicts.where("verdict <> 'good'").collect()]
    return {(row["producer"], row["sequence"]): {name for name in (*NAMES, *OTHERS) if row[name]} for row in rows}


def planted(world: World) -> None:
    """One of everything, each in a message of its own."""
    lost = world.plant("p-0", 5, "lost")
    world.stored.remove(world.stored_of(lost))
    world.forget_received(lost)
    kept_from_all = world.plant("p-1", 6, "missed")
    world.forget_received(kept_from_all)
    missed = world.plant("p-0", 7, "missed")
    world.received.remove(world.received_of(missed, SUBSCRIPTIONS[1]))
    twice = world.plant("p-0", 11, "duplicated")
    world.stored.append({**world.stored_of(twice), "message_id": "12:0:0:0", "index": 500})
    damaged = world.plant("p-1", 13, "damaged")
    world.stored_of(damaged)["value"] = b"other bytes"
    garbled = world.plant("p-1", 14, "damaged")
    world.received_of(garbled)["crc32"] = 1
    late, early = world.plant("p-0", 31, "out_of_order", "misplaced"), world.plant("p-0", 32, "misplaced")
    world.swap(world.stored, world.stored_of(late), world.stored_of(early), "message_id", "index")
    late, early = world.plant("p-1", 41, "out_of_order"), ("p-1", 42)
    world.swap(world.received, world.received_of(late), world.received_of(early), "time", "n")
    elsewhere = world.plant("p-1", 50, "misplaced")
    world.answered[elsewhere]["message_id"] = "99:0:1:0"
    unknown = world.plant("p-0", 60, "unexpected")
    del world.sent[unknown]
    del world.answered[unknown]
    kept = world.plant("p-0", 70, "in_doubt")
    del world.answered[kept]
    gone = world.plant("p-1", 80, "in_doubt")
    world.answered[gone].update(outcome="failed", error="Timeout")
    del world.answered[gone]["message_id"]
    world.stored.remove(world.stored_of(gone))
    world.forget_received(gone)


def test_a_run_without_a_fault_passes(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    result = audited(spark, world, tmp_path, output=str(tmp_path / "out"), report=str(tmp_path / "report.html"))
    found = result.findings
    everything = world.messages * len(PRODUCERS)
    assert result.exit_code == 0
    assert found.counts.sent == found.counts.acknowledged == found.counts.stored == found.counts.received == everything
    assert faults_of(result) == {}
    assert found.latency["ack"].p50 == found.latency["ack"].longest == ACK_US / 1000
    assert found.latency["delivery"].p99 == DELIVERY_US / 1000
    assert found.latency["end_to_end"].count == everything
    assert {step.series: 0 for step in found.steps}.keys() == {"sent", "acknowledged", "received"}
    assert sum(step.count for step in found.steps if step.series == "received") == everything
    assert sum(bin_.count for bin_ in found.bins if bin_.series == "acknowledged") == everything
    assert found.outages == ()
    assert [(stream.producer, stream.stored) for stream in found.streams] == [(name, 200) for name in PRODUCERS]
    assert spark.read.parquet(result.verdicts_path).count() == everything
    assert "Passed" in Path(result.report_path).read_text()


def test_every_planted_fault_is_found_and_nothing_else(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    planted(world)
    result = audited(spark, world, tmp_path)
    assert faults_of(result) == world.expected
    assert result.exit_code == 1
    counts = asdict(result.findings.counts)
    for name in (*NAMES, *OTHERS):
        assert counts[name] == sum(name in faults for faults in world.expected.values()), name
    assert (counts["in_doubt_kept"], counts["failed"], counts["unanswered"]) == (1, 1, 1)
    assert result.findings.faulty[0].verdict == "lost"
    notes = {(row.producer, row.sequence): row.note for row in result.findings.faulty}
    assert notes["p-0", 5] == "acknowledged as 10:0:0:4, but not stored"
    assert notes["p-0", 7] == "not received by shipping"
    assert notes["p-1", 80] == "answered Timeout; it is not stored"


def test_without_the_topic_the_logs_of_both_sides_are_compared(spark: SparkSession, tmp_path: Path) -> None:
    world = World()
    lost = world.plant("p-0", 5, "lost")
    world.forget_received(lost)
    twice = world.plant("p-0", 9, "duplicated")
    world.received.append({**world.received_of(twice), "message_id": "10:77:0:0", "n": 9_999, "redelivery_count": 1})
    again = world.received_of(("p-0", 10))
    world.received.append({**again, "time": again["time"] + 60_000_000, "redelivery_count": 1})
    logs, _ = world.write(tmp_path)
    result = run(spark, AuditOptions(logs=(logs,)))
    assert faults_of(result) == world.expected
    assert result.findings.counts.redelivered == 1


def test_what_a_consumer_cannot_name_is_recognised_by_its_message_id(spark: SparkSession, tmp_path: Path) -> None:
    world = World(messages=40)
    for line in world.received:
        del line["sequence"]
    logs, archive = world.write(tmp_path)
    for options in (AuditOptions(logs=(logs,), archive=archive), AuditOptions(logs=(logs,))):
        assert faults_of(run(spark, options)) == {}


def test_the_order_of_keys_is_less_than_the_order_of_a_producer(spark: SparkSession, tmp_path: Path) -> None:
    world = World(messages=40)
    late, early = ("p-0", 31), ("p-0", 32)  # Of two keys.
    world.swap(world.received, world.received_of(late), world.received_of(early), "time", "n")
    logs, archive = world.write(tmp_path)
    by_order = {
        order: run(
            spark, AuditOptions(logs=(logs,), archive=archive, received_order=order)
        ).findings.counts.out_of_order
        for order in Order
    }
    assert by_order == {Order.PRODUCER: 1, Order.KEY: 0, Order.NONE: 0}


def test_outages_are_when_messages_waited_not_when_nobody_sent(spark: SparkSession, tmp_path: Path) -> None:
    world = World(messages=40)
    for sequence in range(11, 41):  # A pause of a minute before the eleventh.
        for line in (world.sent["p-0", sequence], world.answered["p-0", sequence]):
            line["time"] += 60_000_000
    for sequence in range(21, 26):  # Five that waited three seconds.
        world.answered["p-0", sequence]["time"] += 3_000_000 - (sequence - 21) * 20_000
    for sequence in range(26, 41):
        for line in (world.sent["p-0", sequence], world.answered["p-0", sequence]):
            line["time"] += 3_000_000
    for sequence in range(31, 41):  # And ten that nothing answered any more, over four seconds.
        del world.answered["p-1", sequence]
        world.sent["p-1", sequence]["time"] += (sequence - 31) * 500_000
    logs, archive = world.write(tmp_path)
    found = run(spark, AuditOptions(logs=(logs,), archive=archive)).findings
    assert [(outage.producer, outage.end_us is None) for outage in found.outages] == [("p-1", True), ("p-0", False)]
    assert found.outages[1].duration_ms == pytest.approx(3_000 + ACK_US / 1000, abs=25)
    assert found.outages[0].duration_ms > 4_000


def test_lines_that_cannot_be_read_are_counted(spark: SparkSession, tmp_path: Path) -> None:
    world = World(messages=20)
    logs, archive = world.write(tmp_path)
    with (Path(logs) / "more.jsonl").open("w") as file:
        file.write(
            '{"event": "sent", "topic": "x", "time": 1, "pro\n{"event": "sent"}\n{"event": "unheard of"}\nnot json\n'
        )
    (note,) = run(spark, AuditOptions(logs=(logs,), archive=archive)).findings.notes
    assert note.startswith("4 lines")


def test_a_message_that_no_log_knows_may_be_allowed(spark: SparkSession, tmp_path: Path) -> None:
    world = World(messages=20)
    for of in (("p-0", 3), ("p-1", 4)):
        del world.sent[of]
        del world.answered[of]
    result = audited(spark, world, tmp_path, allow_unexpected=True)
    assert result.findings.counts.unexpected == 2
    assert result.passed


def test_inputs_that_are_not_there_are_named(spark: SparkSession, tmp_path: Path) -> None:
    logs, archive = World(messages=2).write(tmp_path)
    with pytest.raises(AuditInputError, match=r"no log was found.*nowhere"):
        run(spark, AuditOptions(logs=(str(tmp_path / "nowhere"),), archive=archive))
    with pytest.raises(AuditInputError, match="no archive can be read"):
        run(spark, AuditOptions(logs=(logs,), archive=str(tmp_path / "nowhere")))
    spark.range(1).write.parquet(str(tmp_path / "other"))
    with pytest.raises(AuditInputError, match="no column key, value"):
        run(spark, AuditOptions(logs=(logs,), archive=str(tmp_path / "other")))
    with pytest.raises(AuditInputError, match="nothing to compare the sent messages with"):
        run(spark, AuditOptions(logs=(f"{logs}/producers.jsonl",)))


def test_expressions_of_spark_are_those_of_the_plan(spark: SparkSession) -> None:
    from pyspark.sql import functions as F  # noqa: N812

    from magnetar.spark.pipelines.audit.inputs import full_topic, place_of

    values = [0.0, 0.01, 0.5, 1.0, 7.7, 250.0, 100_000.0]
    rows = (
        spark.createDataFrame([(value,) for value in values], "ms double").select(bin_expression(F.col("ms"))).collect()
    )
    assert [row[0] for row in rows] == [bin_of(value) for value in values]
    topics = ["orders", "a/b/orders-partition-12", TOPIC, f"{TOPIC}-partition-0"]
    rows = (
        spark.createDataFrame([(name,) for name in topics], "t string")
        .select(full_topic(F.col("t"), qualified=True))
        .collect()
    )
    assert [row[0] for row in rows] == [whole_topic(name) for name in topics]
    places = {"3:4:-1:-1": "3:4:0", "3:4:0:7": "3:4:7", "3:4:-1": "3:4:0", "2:77": "2:77", "-1:-1:-1:-1": None}
    rows = spark.createDataFrame([(name,) for name in places], "t string").select(place_of(F.col("t"))).collect()
    assert [row[0] for row in rows] == list(places.values())


# --- real clients on a real server ------------------------------------------------------------------------------------


def test_a_partitioned_topic_is_audited_with_logs_of_the_official_client(
    spark: SparkSession, standalone: StandaloneProcess, tmp_path: Path
) -> None:
    topic = "persistent://public/default/audited"
    call(standalone.admin_url, "PUT", "/admin/v2/persistent/public/default/audited/partitions", "3")
    count = _published_and_received(standalone.url, topic, tmp_path)
    options = AuditOptions(
        logs=(str(tmp_path / "*.jsonl"),), topics=(topic,), service_url=standalone.url, admin_url=standalone.admin_url
    )
    result = run(spark, options)
    assert faults_of(result) == {}
    counts = result.findings.counts
    assert counts.acknowledged == counts.stored == counts.received == count
    assert {row.partition for row in result.verdicts.select("partition").distinct().collect()} == {0, 1, 2}
    by_header = run(spark, replace(options, identity=Identity.HEADER))
    assert by_header.passed
    _forge(tmp_path / "clients.jsonl", topic)
    _forge(tmp_path / "clients.jsonl", "elsewhere")
    forged = run(spark, options)
    assert forged.findings.notes == ("1 line of the logs is about other topics and was passed over",)
    assert faults_of(forged) == {("official", count + 1): {"lost"}}


def test_what_retention_deleted_has_expired_and_is_not_lost(
    spark: SparkSession, standalone: StandaloneProcess, tmp_path: Path
) -> None:
    topic = "persistent://public/default/expired"
    _published_and_received(standalone.url, topic, tmp_path, count=10)
    lines = [json.loads(line) for line in (tmp_path / "clients.jsonl").read_text().splitlines()]
    with (tmp_path / "clients.jsonl").open("a") as file:  # As if an earlier ledger had been there.
        for line in (line for line in lines if line["event"] != "received" and line["sequence"] == 1):
            line["sequence"], line["message_id"] = 1_000, "0:0:-1:0"
            file.write(json.dumps(line) + "\n")
    options = AuditOptions(
        logs=(str(tmp_path / "*.jsonl"),), topics=(topic,), service_url=standalone.url, admin_url=standalone.admin_url
    )
    result = run(spark, options)
    assert faults_of(result) == {("official", 1_000): {"expired"}}
    assert result.passed


def _published_and_received(url: str, topic: str, directory: Path, count: int = 300) -> int:
    with AuditLog(directory / "clients.jsonl", "official") as log:
        client = PulsarClient(pulsar.Client(url), log)
        try:
            consumer = client.subscribe(topic, "audit", initial_position=pulsar.InitialPosition.Earliest)
            producer = client.create_producer(topic, producer_name="official", block_if_queue_full=True)
            for number in range(count):
                producer.send_async(b"value %d" % number, partition_key=f"k{number % 50}")
            producer.flush()
            for _ in range(count):
                consumer.acknowledge(consumer.receive(30_000))
        finally:
            client.close()
    return count


def _forge(log: Path, topic: str) -> None:
    """An acknowledgement that no broker gave, behind all others."""
    answers = [json.loads(line) for line in log.read_text().splitlines() if '"answered"' in line]
    last = max(answers, key=lambda line: line["sequence"])
    line = {**last, "sequence": last["sequence"] + 1, "message_id": f"{2**40}:0:-1:0", "topic": topic}
    with log.open("a") as file:
        file.write(json.dumps(line) + "\n")
