"""The shortest way through everything: a topic as a DataFrame, in SQL, as a stream into another topic, and a mistake.

One Spark session, which takes most of the time; all else about Spark is in interop/spark/suite.
"""

from __future__ import annotations

import urllib.request
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

import magnetar.spark
from magnetar.errors import MissingDependencyError
from magnetar.testing.processes.servers import StandaloneProcess
from workloads.pulsar_load import connect

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = [pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
COUNT = 200
KEEP = "broker.inactive_topics_delete=false"  # A minute without subscriptions is soon over on a busy machine.


@pytest.fixture(scope="module")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from magnetar.spark.session import make_session

    try:
        session = make_session("smoke", "local[2]", log=tmp_path_factory.mktemp("spark") / "spark.log")
    except MissingDependencyError as error:
        pytest.skip(f"Spark cannot be started here: {error}")
    yield session  # Without `register`: the package is installed, and Spark finds its source.
    session.stop()


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("standalone") / "server", KEEP) as server:
        yield server


def test_a_topic_is_a_dataframe_a_view_and_a_stream_into_another_topic(
    spark: SparkSession, server: StandaloneProcess, tmp_path: Path
) -> None:
    client = connect(server.url, tmp_path / "client.log")
    producer = client.create_producer("smoke-in")
    for number in range(COUNT):
        producer.send_async(b"%d" % number, None, partition_key=f"k{number % 3}")
    producer.flush()
    client.create_producer("smoke-out").close()
    client.close()
    where = where_of(server)
    expected = [b"%d" % number for number in range(COUNT)]

    frame = spark.read.format("magnetar").options(**where, topic="smoke-in").load()
    assert values(frame) == expected

    spark.sql(
        "CREATE TEMPORARY VIEW smoke USING magnetar OPTIONS "
        f"(topic 'smoke-in', serviceUrl '{server.url}', adminUrl '{server.admin_url}', startingIndex '190')"
    )
    assert spark.sql("SELECT count(*) AS n, max(index) AS last FROM smoke").collect()[0].asDict() == {
        "n": 10,
        "last": 199,
    }

    stream = spark.readStream.format("magnetar").options(**where, topic="smoke-in", startingOffsets="earliest").load()
    query = (
        stream.select("key", "value")
        .writeStream.format("magnetar")
        .options(**where, topic="smoke-out", checkpointLocation=str(tmp_path / "checkpoint"))
        .trigger(availableNow=True)
        .start()
    )
    assert query.awaitTermination(150), "the stream did not end"
    copied = spark.read.format("magnetar").options(**where, topic="smoke-out").load()
    assert values(copied) == expected


def test_one_job_id_is_saved_to_two_topics_at_once_by_plain_threads_and_to_each_of_them_once(
    spark: SparkSession, server: StandaloneProcess
) -> None:
    where = where_of(server) | {"jobId": "a-query/7"}
    rows = spark.range(100).selectExpr("CAST(id AS STRING) AS value")

    def save(topic: str) -> None:
        rows.write.format("magnetar").options(**where, topic=topic).mode("append").save()

    with ThreadPoolExecutor(2, initializer=magnetar.spark.register, initargs=(spark,)) as threads:
        list(threads.map(save, ["smoke-fa", "smoke-fb"]))
        threads.submit(save, "smoke-fa").result()

    for topic in ("smoke-fa", "smoke-fb"):
        assert spark.read.format("magnetar").options(**where_of(server), topic=topic).load().count() == 100
    with urllib.request.urlopen(f"{server.admin_url}/metrics", timeout=30) as answer:
        assert "magnetar_staging_skips_total 1.0" in answer.read().decode()


def where_of(server: StandaloneProcess) -> dict[str, str]:
    return {"serviceUrl": server.url, "adminUrl": server.admin_url}


def test_a_topic_that_does_not_exist_says_so(spark: SparkSession, server: StandaloneProcess) -> None:
    where = where_of(server)
    with pytest.raises(Exception, match="does not exist"):
        spark.read.format("magnetar").options(**where, topic="no-such-topic").load().count()


def values(frame: Any) -> list[bytes]:
    return [bytes(row.value) for row in frame.orderBy("index").select("value").collect()]
