"""Streaming writes: each row once, whatever fails, is repeated, or comes out otherwise the second time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path

import pulsar
import pyarrow as pa
import pytest
from pyspark import TaskContext
from pyspark.errors import StreamingQueryException
from pyspark.sql import DataFrame, SparkSession

from interop.spark import sink_faults
from interop.spark.sink_reading import make_partitioned, post, read_topic
from magnetar.errors import SparkFailedError
from magnetar.spark.writing import writers
from magnetar.testing.processes.servers import StandaloneProcess

pytestmark = pytest.mark.timeout(300)


@pytest.fixture
def client(standalone: StandaloneProcess) -> Iterator[pulsar.Client]:
    opened = pulsar.Client(standalone.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    yield opened
    opened.close()


class Stream:
    """Files come in, one is one micro-batch; rows go to a topic."""

    def __init__(self, spark: SparkSession, standalone: StandaloneProcess, directory: Path, faults: Path) -> None:
        self._spark = spark
        self._faults = faults
        self._standalone = standalone
        self._input = directory / "in"
        self._input.mkdir()
        self._checkpoint = directory / "checkpoint"
        self._next = 0

    def put(self, rows: int) -> None:
        """One micro-batch of so many rows, numbered on."""
        lines = [json.dumps({"id": number}) for number in range(self._next, self._next + rows)]
        self._next += rows
        part = self._input / f".part-{self._next:08}"
        part.write_text("\n".join(lines))
        os.utime(part, (self._next, self._next))  # Spark takes the older file first, by the millisecond.
        part.rename(self._input / f"part-{self._next:08}.json")

    def fail_at(self, point: str, epoch: int) -> None:
        """The next run, once."""
        sink_faults.fail_at(self._faults, point, epoch)

    def run(self, topic: str, change: Callable[[DataFrame], DataFrame], **options: str) -> None:
        """Until all that came in is written. Raises what the query raises."""
        rows = self._spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).json(str(self._input))
        writer = change(rows).writeStream.format("magnetar").option("topic", topic).options(**options)
        writer = writer.option("serviceUrl", self._standalone.url).option("adminUrl", self._standalone.admin_url)
        query = writer.option("checkpointLocation", str(self._checkpoint)).trigger(availableNow=True).start()
        query.awaitTermination()

    def run_each(self, write: Callable[[DataFrame, int], None]) -> None:
        rows = self._spark.readStream.schema("id LONG").option("maxFilesPerTrigger", 1).json(str(self._input))
        writer = rows.writeStream.foreachBatch(write).option("checkpointLocation", str(self._checkpoint))
        writer.trigger(availableNow=True).start().awaitTermination()


@pytest.fixture
def stream(spark: SparkSession, standalone: StandaloneProcess, tmp_path: Path, faults: Path) -> Iterator[Stream]:
    faults.unlink(missing_ok=True)
    yield Stream(spark, standalone, tmp_path, faults)
    for query in spark.streams.active:
        query.stop()


def plain(rows: DataFrame) -> DataFrame:
    return rows.selectExpr("CAST(id AS STRING) AS value", "CAST(id % 5 AS STRING) AS key")


def numbers(client: pulsar.Client, topic: str) -> list[int]:
    return [int(each.value) for each in read_topic(client, topic)]


def test_a_query_that_is_started_again_goes_on_where_it_was(stream: Stream, client: pulsar.Client) -> None:
    stream.put(1_000)
    stream.put(500)
    stream.run("stream-again", plain)
    stream.run("stream-again", plain)
    stream.put(700)
    stream.run("stream-again", plain)

    assert numbers(client, "stream-again") == list(range(2_200))


@pytest.mark.parametrize(
    "point", ["tasks-done", "before-intent", "intent-reply-lost", "published", "before-commit-file"]
)
def test_a_commit_that_fails_is_repeated_and_nothing_is_doubled(
    stream: Stream, client: pulsar.Client, point: str
) -> None:
    topic = f"stream-{point}"
    for _ in range(3):
        stream.put(200)
    stream.fail_at(point, 1)

    with pytest.raises(StreamingQueryException, match=f"{point} of epoch 1"):
        stream.run(topic, plain)
    stream.run(topic, plain)

    assert numbers(client, topic) == list(range(600))


def test_a_query_with_random_rows_and_other_partitions_is_one_execution_of_each_batch(
    stream: Stream, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    make_partitioned(standalone, "stream-random", 3)
    stream.put(300)
    stream.put(400)
    stream.fail_at("before-commit-file", 1)
    with pytest.raises(StreamingQueryException, match="before-commit-file"):
        stream.run("stream-random", lambda rows: rolled(rows, "first").repartition(2))

    stream.run("stream-random", lambda rows: rolled(rows, "second").repartition(3))

    found = read_topic(client, "stream-random")
    assert sorted(int(each.value) for each in found) == list(range(700))
    runs = {each.properties["run"] for each in found if int(each.value) >= 300}
    assert runs == {"first"}, "the batch was decided by the first run, and the second one's rows are dropped"


def rolled(rows: DataFrame, run: str) -> DataFrame:
    return rows.selectExpr(
        "CAST(id AS STRING) AS value", "CAST(rand() AS STRING) AS key", f"map('run', '{run}') AS properties"
    )


def test_a_random_batch_that_failed_before_it_was_decided_is_the_second_run_alone(
    stream: Stream, client: pulsar.Client
) -> None:
    stream.put(300)
    stream.fail_at("before-intent", 0)
    with pytest.raises(StreamingQueryException, match="before-intent"):
        stream.run("stream-undecided", lambda rows: rolled(rows, "first").repartition(2))

    stream.run("stream-undecided", lambda rows: rolled(rows, "second").repartition(1))

    found = read_topic(client, "stream-undecided")
    assert sorted(int(each.value) for each in found) == list(range(300))
    assert {each.properties["run"] for each in found} == {"second"}


@pytest.mark.filterwarnings("ignore:PySpark does not yet fully support pandas")  # mapInArrow asks for it, unused.
def test_a_task_that_fails_and_is_repeated_writes_its_rows_once(
    spark: SparkSession, stream: Stream, client: pulsar.Client
) -> None:
    if "," not in spark.sparkContext.master:
        pytest.skip("this session never repeats a task: its master must be local[2,3] or a cluster")

    def fails_at_first(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        """Every task's first attempt, after some of its rows were written."""
        context = TaskContext.get()
        assert context is not None
        for batch in batches:
            yield from (batch.slice(at, 50) for at in range(0, batch.num_rows, 50))
        if context.attemptNumber() == 0:
            raise RuntimeError("planned")

    stream.put(1_000)
    stream.put(10)

    stream.run(
        "stream-retry",
        lambda rows: plain(rows).mapInArrow(fails_at_first, "value STRING, key STRING"),
        batchingMaxBytes="2000",
    )

    assert numbers(client, "stream-retry") == list(range(1_010))


def test_dedup_of_a_plain_query_drops_what_a_repeated_task_sends_again(
    stream: Stream, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    make_partitioned(standalone, "stream-dedup", 2)
    post(standalone, "/admin/v2/persistent/public/default/stream-dedup/deduplicationEnabled", True)
    stream.put(400)
    stream.fail_at("before-commit-file", 0)
    with pytest.raises(StreamingQueryException, match="before-commit-file"):
        stream.run("stream-dedup", plain, delivery="dedup", batchingMaxBytes="2000")

    stream.run("stream-dedup", plain, delivery="dedup", batchingMaxBytes="2000")

    assert sorted(numbers(client, "stream-dedup")) == list(range(400))


def test_in_foreach_batch_a_job_id_of_query_and_batch_writes_each_batch_once(
    stream: Stream, client: pulsar.Client, standalone: StandaloneProcess
) -> None:
    where = {"serviceUrl": standalone.url, "adminUrl": standalone.admin_url, "topic": "stream-each"}

    def write_twice(rows: DataFrame, batch: int) -> None:
        for _ in range(2):
            plain(rows).write.format("magnetar").options(**where, jobId=f"a-query/{batch}").mode("append").save()

    stream.put(300)
    stream.put(200)
    stream.run_each(write_twice)

    assert numbers(client, "stream-each") == list(range(500))


def test_a_spark_that_does_not_tell_a_task_its_batch_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    class Context:
        def getLocalProperty(self, name: str) -> str | None:  # noqa: N802
            return "a-query" if name == writers.QUERY_ID else None

    monkeypatch.setattr(TaskContext, "get", staticmethod(Context))

    with pytest.raises(SparkFailedError, match="does not give a task its query"):
        writers.stream_task()
