"""Batches of rows become messages, each once, as the official client reads them."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pulsar
import pyarrow as pa
import pytest
from pulsar.schema import AvroSchema, Integer, JsonSchema, Long, Record, String
from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.sql import DataFrame, SparkSession

import magnetar.spark
from interop.spark.messages import PATIENCE_MS
from interop.spark.sink_reading import make_partitioned, post, read_topic
from magnetar.testing.processes.servers import StandaloneProcess
from magnetar.testing.waiting import until

pytestmark = pytest.mark.timeout(300)

Write = Callable[..., None]


@pytest.fixture
def write(standalone: StandaloneProcess) -> Write:
    def done(rows: DataFrame, topic: str, mode: str = "append", **options: str) -> None:
        writer = rows.write.format("magnetar").option("serviceUrl", standalone.url)
        writer = writer.option("adminUrl", standalone.admin_url).option("topic", topic)
        writer.options(**options).mode(mode).save()

    return done


@pytest.fixture
def client(standalone: StandaloneProcess) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(standalone.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


def numbered(spark: SparkSession, count: int, partitions: int = 3) -> DataFrame:
    return spark.range(0, count, 1, partitions).selectExpr(
        "concat('key-', id % 17) AS key",
        "CAST(concat(repeat('x', CAST(id % 50 AS INT)), ' ', id) AS BINARY) AS value",
        "timestamp_millis(1700000000000 + id) AS event_time",
        "map('number', CAST(id AS STRING), 'of', 'test') AS properties",
    )


@pytest.mark.parametrize("compression", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_a_batch_is_read_by_the_official_client_row_by_row(
    spark: SparkSession, write: Write, client: pulsar.Client, compression: str
) -> None:
    topic = f"sink-{compression}"

    write(numbered(spark, 5_000), topic, compression=compression, batchingMaxBytes="20000")

    found = read_topic(client, topic)
    assert [int(each.properties["number"]) for each in found] == list(range(5_000))
    for number, each in enumerate(found):
        assert each.value == b"x" * (number % 50) + b" %d" % number
        assert (each.key, each.event_ms) == (f"key-{number % 17}", 1_700_000_000_000 + number)


def test_values_beyond_the_brokers_limit_arrive_whole_and_in_order(
    spark: SparkSession, write: Write, client: pulsar.Client
) -> None:
    rows = spark.range(0, 4, 1, 1).selectExpr("repeat(CAST(id AS STRING), IF(id % 2 = 0, 10, 12000000)) AS value")

    write(rows, "sink-large")

    found = [each.value for each in read_topic(client, "sink-large")]
    assert found == [b"0" * 10, b"1" * 12_000_000, b"2" * 10, b"3" * 12_000_000]


def test_a_key_goes_to_the_partition_that_the_java_client_chooses(
    spark: SparkSession, write: Write, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    """Its default: `hashCode()` of the key without its sign, here computed by Spark's own JVM."""
    make_partitioned(standalone, "sink-by-key", 5)
    keys = [f"{word}-{number}" for word in ("key", "schlüssel", "鍵", "🔑") for number in range(50)]
    jvm = spark.sparkContext._jvm
    assert jvm is not None

    write(spark.createDataFrame([(key, b"v") for key in keys], "key STRING, value BINARY"), "sink-by-key")

    found = {each.key: each.partition for each in read_topic(client, "sink-by-key")}
    assert found == {key: (jvm.java.util.Objects.hashCode(key) & 0x7FFFFFFF) % 5 for key in keys}


def test_rows_without_a_key_are_spread_over_all_partitions_each_once(
    spark: SparkSession, write: Write, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    make_partitioned(standalone, "sink-keyless", 3)

    write(
        spark.range(0, 3_000, 1, 2).selectExpr("CAST(id AS STRING) AS value"), "sink-keyless", batchingMaxBytes="5000"
    )

    found = read_topic(client, "sink-keyless")
    assert sorted(int(each.value) for each in found) == list(range(3_000))
    assert {each.partition for each in found} == {0, 1, 2}


def test_a_topic_column_sends_each_row_to_its_topic(
    spark: SparkSession, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    rows = spark.range(0, 100, 1, 2).selectExpr("CAST(id AS STRING) AS value", "concat('sink-to-', id % 3) AS topic")
    options = {"serviceUrl": standalone.url, "adminUrl": standalone.admin_url}

    rows.write.format("magnetar").options(**options).mode("append").save()

    for rest in range(3):
        found = [int(each.value) for each in read_topic(client, f"sink-to-{rest}")]
        assert found == list(range(rest, 100, 3))


class Order(Record):  # type: ignore[misc]  # The client has no types.
    id = Long()
    name = String()
    amount = Integer()


@pytest.mark.parametrize(("kind", "schema"), [("json", JsonSchema(Order)), ("avro", AvroSchema(Order))])
def test_typed_columns_are_records_for_the_official_client(
    spark: SparkSession, write: Write, client: pulsar.Client, kind: str, schema: Any
) -> None:
    topic = f"sink-typed-{kind}"
    rows = spark.range(0, 500, 1, 2).selectExpr(
        "id", "IF(id % 7 = 0, NULL, concat('nm \"', id, '\"')) AS name", "CAST(id * 2 AS INT) AS amount", "id AS key"
    )

    write(rows.withColumn("key", rows.key.cast("string")), topic, schema=kind)

    consumer = client.subscribe(topic, "s", schema=schema, initial_position=pulsar.InitialPosition.Earliest)
    for number in range(500):
        message = consumer.receive(PATIENCE_MS)
        order = message.value()
        assert (order.id, order.amount, message.partition_key()) == (number, number * 2, str(number))
        assert order.name == (None if number % 7 == 0 else f'nm "{number}"')
    consumer.close()


def test_a_job_that_is_run_twice_writes_once(spark: SparkSession, write: Write, client: pulsar.Client) -> None:
    for _ in range(2):
        write(numbered(spark, 300), "sink-job", jobId="replay-1")
    assert len(read_topic(client, "sink-job")) == 300

    write(numbered(spark, 300), "sink-job", jobId="replay-2")
    write(numbered(spark, 300), "sink-job")
    assert len(read_topic(client, "sink-job")) == 900


def test_a_cancelled_job_shows_nothing_and_may_be_run_again(
    spark: SparkSession, write: Write, client: pulsar.Client, tmp_path: Path
) -> None:
    is_written, may_end = tmp_path / "written", tmp_path / "may-end"

    def waits(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """A task that has written rows, and ends after all others."""
        yield from batches
        is_written.touch()
        asyncio.run(until(may_end.exists, "the test has looked", seconds=120))

    def save() -> None:
        spark.sparkContext.setJobGroup("doomed", "a job that is cancelled", interruptOnCancel=True)
        rows = numbered(spark, 2_000, partitions=1)
        waiting = rows.mapInArrow(waits, rows.schema)
        write(waiting, "sink-cancelled", jobId="cancelled", batchingMaxBytes="5000")

    with ThreadPoolExecutor(1, initializer=magnetar.spark.register, initargs=(spark,)) as threads:
        job = threads.submit(save)
        asyncio.run(until(lambda: is_written.exists() or job.done(), "rows are written", seconds=120))
        spark.sparkContext.cancelJobGroup("doomed")
        with pytest.raises(Py4JJavaError, match="SPARK_JOB_CANCELLED"):
            job.result(60)
    assert read_topic(client, "sink-cancelled") == []

    may_end.touch()
    write(numbered(spark, 2_000), "sink-cancelled", jobId="cancelled")
    assert [int(each.properties["number"]) for each in read_topic(client, "sink-cancelled")] == list(range(2_000))


def test_two_jobs_write_to_one_topic_at_once(spark: SparkSession, write: Write, client: pulsar.Client) -> None:
    def save(job: str) -> None:
        write(numbered(spark, 1_000), "sink-two-jobs", jobId=job, batchingMaxBytes="5000")

    with ThreadPoolExecutor(2, initializer=magnetar.spark.register, initargs=(spark,)) as threads:
        list(threads.map(save, ("one", "other")))
    found = [int(each.properties["number"]) for each in read_topic(client, "sink-two-jobs")]
    assert sorted(found) == sorted([*range(1_000), *range(1_000)])
    assert found == [*range(1_000), *range(1_000)], "each is there as a whole, and in its order"


def test_an_empty_batch_writes_nothing(spark: SparkSession, write: Write, client: pulsar.Client) -> None:
    write(numbered(spark, 0), "sink-empty")

    assert read_topic(client, "sink-empty") == []


def test_dedup_drops_what_a_repeated_job_sends_again(
    spark: SparkSession, write: Write, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    rows = numbered(spark, 2_000)
    with pytest.raises(PySparkException, match="needs deduplication, which is off"):
        write(rows, "sink-dedup", delivery="dedup", jobId="d")
    post(standalone, "/admin/v2/persistent/public/default/sink-dedup/deduplicationEnabled", True)

    for _ in range(2):
        write(rows, "sink-dedup", delivery="dedup", jobId="d", batchingMaxBytes="10000")

    found = sorted(int(each.properties["number"]) for each in read_topic(client, "sink-dedup"))
    assert found == list(range(2_000))


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"mode": "overwrite"}, "cannot be overwritten"),
        ({"compresion": "lz4"}, "did you mean 'compression'"),
        ({"schema": "protobuf"}, "Known are none, json, avro"),
    ],
)
def test_what_cannot_be_written_is_refused_with_what_to_do(
    spark: SparkSession, write: Write, options: dict[str, str], words: str
) -> None:
    with pytest.raises(PySparkException, match=words):
        write(numbered(spark, 1), "sink-refused", **options)


def test_a_topic_that_may_not_be_made_is_an_error_that_says_how(
    spark: SparkSession, write: Write, standalone: StandaloneProcess
) -> None:
    post(standalone, "/admin/v2/namespaces/public/closed", {}, method="PUT")
    post(standalone, "/admin/v2/namespaces/public/closed/autoTopicCreation", {"allowAutoTopicCreation": False})

    with pytest.raises(PySparkException, match="magnetar topics create persistent://public/closed/none"):
        write(numbered(spark, 1), "public/closed/none")
