"""What the tests of the Spark suite share: one session on two cores, one standalone server, clients for both.

A session takes ten seconds and more to start, so there is one; tests that kill it, or need others settings, start
processes of their own (kill_cases.py).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pulsar
import pytest

import magnetar.spark
from interop.spark import sink_faults
from interop.spark.suite.http import call
from magnetar.errors import MissingDependencyError
from magnetar.spark.session import make_session
from magnetar.testing.processes.servers import StandaloneProcess
from workloads.pulsar_load import connect

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

KEEP = "broker.inactive_topics_delete=false"
"""A topic without subscriptions is deleted after a minute, which is soon on a busy machine."""
_NOT_STARTED = "Python worker failed to connect back"
_TRIES = 5
SETTINGS = {
    "spark.sql.shuffle.partitions": "2",
    "spark.sql.streaming.checkpointFileManagerClass": (
        "org.apache.spark.sql.execution.streaming.checkpointing.FileSystemBasedCheckpointFileManager"
    ),
    "spark.hadoop.fs.file.impl": "org.apache.hadoop.fs.RawLocalFileSystem",
    "spark.sql.streaming.stopTimeout": "20s",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1 -XX:+UseSerialGC",
}
"""Checkpoints straight to the disk: Spark's default costs a tenth of a second and more for each batch. Every query of
the suite is small: to compile well would take longer than the work."""


@pytest.fixture(scope="session")
def faults(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A file that a test writes to make the sink fail (sink_faults.py)."""
    return tmp_path_factory.mktemp("faults") / "fault"


@pytest.fixture(scope="session")
def spark(tmp_path_factory: pytest.TempPathFactory, faults: Path) -> Iterator[SparkSession]:
    log = tmp_path_factory.mktemp("spark") / "spark.log"
    try:
        with sink_faults.hooked(faults):
            session = make_session("suite", "local[2,3]", SETTINGS, log)
    except MissingDependencyError as error:
        pytest.skip(str(error))
    magnetar.spark.register(session)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    with StandaloneProcess(tmp_path_factory.mktemp("standalone") / "server", KEEP) as server:
        yield server


@pytest.fixture(autouse=True)
def _no_query_is_left(request: pytest.FixtureRequest) -> Iterator[None]:
    yield
    if "spark" in request.fixturenames:
        for query in request.getfixturevalue("spark").streams.active:
            query.stop()


_numbers = itertools.count()


@dataclass
class World:
    """A session and a server, and short ways to both."""

    spark: SparkSession
    server: StandaloneProcess
    directory: Path
    client: pulsar.Client
    rows: dict[str, list[Any]] = field(default_factory=dict)
    """What streams have read, by the name that they were given."""

    def new_topic(self, partitions: int = 0) -> str:
        topic = f"persistent://public/default/spark-{next(_numbers)}"
        path = topic.removeprefix("persistent://")
        if partitions:
            self.admin("PUT", f"/admin/v2/persistent/{path}/partitions", str(partitions))
        else:
            self.admin("PUT", f"/admin/v2/persistent/{path}")
        return topic

    def admin(self, method: str, path: str, body: str | None = None) -> Any:
        return call(self.server.admin_url, method, path, body)

    def fill(self, topic: str, count: int, first: int = 0, **producer: Any) -> list[bytes]:
        """So many messages of a number each, keyed; returns the values."""
        values = [b"%06d" % number for number in range(first, first + count)]
        made = self.client.create_producer(topic, block_if_queue_full=True, **producer)
        for number, value in enumerate(values, first):
            made.send_async(value, None, partition_key=f"k{number % 5}", properties={"n": str(number)})
        made.flush()
        made.close()
        return values

    @property
    def where(self) -> dict[str, str]:
        return {"serviceUrl": self.server.url, "adminUrl": self.server.admin_url}

    def read(self, **options: Any) -> DataFrame:
        return self.spark.read.format("magnetar").options(**self.where, **options).load()

    def read_stream(self, **options: Any) -> DataFrame:
        return self.spark.readStream.format("magnetar").options(**self.where, **options).load()

    def values(self, frame: DataFrame) -> list[bytes]:
        return [bytes(row.value) for row in frame.select("value").collect()]

    def run_now(self, frame: DataFrame, name: str, checkpoint: Path | None = None) -> Any:
        """All that is there now goes to `rows`; returns the query, which has ended."""
        batches: dict[int, list[Any]] = {}

        def keep(batch: DataFrame, batch_id: int) -> None:
            batches[batch_id] = batch.collect()  # One that is repeated takes the place of its first try.

        writer = frame.writeStream.foreachBatch(keep).trigger(availableNow=True)
        writer = writer.option("checkpointLocation", str(checkpoint or self.directory / name))
        query = patiently(lambda: ended(writer.start()))
        self.rows[name] = [row for rows in batches.values() for row in rows]
        return query


def ended(query: Any, seconds: int = 200) -> Any:
    """The query, when it has ended well; else raises why it did not."""
    assert query.awaitTermination(seconds), f"{query.name} did not end within {seconds} s"
    return query


def patiently(work: Callable[[], Any]) -> Any:
    """Spark gives a Python worker ten seconds to start, which a busy machine may not have: begun again then."""
    for _ in range(_TRIES - 1):
        try:
            return work()
        except Exception as error:
            if _NOT_STARTED not in str(error):
                raise
    return work()


@pytest.fixture
def world(spark: SparkSession, standalone: StandaloneProcess, tmp_path: Path) -> Iterator[World]:
    client = connect(standalone.url, tmp_path / "client.log")
    made = World(spark, standalone, tmp_path, client)
    yield made
    client.close()


@pytest.fixture
def refused() -> Callable[..., str]:
    """What a user is told: the text of the error that this ends with."""

    def run(work: Callable[[], Any]) -> str:
        for _ in range(_TRIES):
            with pytest.raises(Exception) as caught:  # noqa: PT011 - Spark's own class; what matters is what it says
                work()
            if _NOT_STARTED not in str(caught.value):
                break
        return str(caught.value)

    return run
