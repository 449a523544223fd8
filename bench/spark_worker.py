"""One side of the Spark rows: a Spark session on two cores that stays warm, and does what it is told line by line.

    python -m bench.spark_worker kafka BOOTSTRAP DIRECTORY
    python -m bench.spark_worker magnetar SERVICE_URL ADMIN_URL DIRECTORY

Prints `ready`, then answers every line of JSON {"op": …, "topic": …} with one {"seconds": …, "rows": …}:
write    ROWS values of SIZE bytes, no keys, into a topic
batch    all of a topic, to nowhere
stream   the same as a streaming query that ends at the end of the topic: the seconds of its batches; `in_all` has
         those of its start and end, too
wide     as batch, with every column there is
count    how many there are; not timed
scrub    ours alone: every replica of every entry in the cluster read and verified, topics or not

The six columns that are read are the same on both sides: key, value, topic, partition, offset or index, time.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F  # noqa: N812 - as everybody calls it

from bench.spark_values import DIGITS, filler
from interop.jars import KAFKA_CONNECTOR, jar_folder
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.session import make_session

MASTER: Final = "local[2]"
TASKS: Final = 2
COLUMNS: Final = "key binary, value binary, topic string, partition int, index bigint, publish_time timestamp"
_STREAM_TIMEOUT_S: Final = 300
_SETTINGS: Final = {"spark.driver.memory": "3g", "spark.sql.shuffle.partitions": "2"}

Figures = dict[str, float]


class Kafka:
    def __init__(self, bootstrap: str, directory: str) -> None:
        jars = {"spark.driver.extraClassPath": f"{jar_folder(KAFKA_CONNECTOR)}/*"}
        self.spark = _session(directory, jars)
        self._bootstrap = bootstrap
        self._columns = ("key", "value", "topic", "partition", "offset", "timestamp")

    def configured(self, io: Any, topic: str, *, reads: bool) -> Any:
        named = io.format("kafka").option("kafka.bootstrap.servers", self._bootstrap)
        if reads:
            return named.option("subscribe", topic).option("startingOffsets", "earliest")
        return named.option("topic", topic).option("kafka.acks", "all")

    def load(self, reader: Any, topic: str, *, wide: bool) -> DataFrame:
        loaded: DataFrame = self.configured(reader, topic, reads=True).load()
        return loaded if wide else loaded.select(*self._columns)


class Magnetar:
    def __init__(self, service_url: str, admin_url: str, directory: str) -> None:
        from magnetar.spark import register

        self.spark = _session(directory, {})
        register(self.spark)
        self._options = {"serviceUrl": service_url, "adminUrl": admin_url}
        self.cluster = ClusterOptions.of(service_url, admin_url)

    def configured(self, io: Any, topic: str, *, reads: bool) -> Any:
        named = io.format("magnetar").options(**self._options).option("topic", topic)
        return named.option("startingOffsets", "earliest") if reads else named

    def load(self, reader: Any, topic: str, *, wide: bool) -> DataFrame:
        """A schema is what prunes columns here: `select` alone does not reach a source in Python."""
        reads = self.configured(reader, topic, reads=True)
        loaded: DataFrame = (reads if wide else reads.schema(COLUMNS)).load()
        return loaded


Side = Kafka | Magnetar


def _session(directory: str, more: dict[str, str]) -> SparkSession:
    settings = {**_SETTINGS, **more, "spark.local.dir": directory, "spark.sql.warehouse.dir": f"{directory}/warehouse"}
    return make_session("benchmark", MASTER, settings, Path(directory) / "spark.log")


def write(side: Side, topic: str, rows: int, size: int) -> Figures:
    number = F.lpad(F.col("id").cast("string"), DIGITS, "0")
    values = side.spark.range(0, rows, 1, TASKS).select(
        F.concat(number, F.lit(filler(size).decode())).cast("binary").alias("value")
    )
    began = time.monotonic()
    side.configured(values.write, topic, reads=False).mode("append").save()
    return {"seconds": time.monotonic() - began, "rows": rows}


def batch(side: Side, topic: str, *, wide: bool = False) -> Figures:
    began = time.monotonic()
    side.load(side.spark.read, topic, wide=wide).write.format("noop").mode("overwrite").save()
    return {"seconds": time.monotonic() - began}


def wide(side: Side, topic: str) -> Figures:
    return batch(side, topic, wide=True)


def stream(side: Side, topic: str) -> Figures:
    with tempfile.TemporaryDirectory() as checkpoint:
        began = time.monotonic()
        rows = side.load(side.spark.readStream, topic, wide=False)
        writer = rows.writeStream.format("noop").option("checkpointLocation", checkpoint).trigger(availableNow=True)
        query = writer.start()
        if not query.awaitTermination(_STREAM_TIMEOUT_S):
            query.stop()
            raise SystemExit(f"the stream did not end within {_STREAM_TIMEOUT_S} s")
        in_all = time.monotonic() - began
        progress = query.recentProgress
    took = sum(each.durationMs["triggerExecution"] for each in progress) / 1000
    return {"seconds": took, "rows": sum(each.numInputRows for each in progress), "in_all": in_all}


def count(side: Side, topic: str) -> Figures:
    return {"rows": side.load(side.spark.read, topic, wide=False).count()}


def scrub(side: Side) -> Figures:
    from magnetar.spark.pipelines.scrub import ScrubOptions, run

    assert isinstance(side, Magnetar)
    result = run(side.spark, ScrubOptions(cluster=side.cluster))
    faults = [finding for finding in result.findings if finding.what.is_fault]
    if faults:
        raise SystemExit(f"the scrub found what nobody damaged: {faults[:3]}")
    unanswered = sum(finding.entries for finding in result.findings)
    return {"seconds": result.seconds, "bytes": result.size_bytes, "unanswered": unanswered}


OPERATIONS: dict[str, Callable[..., Figures]] = {
    "write": write,
    "batch": batch,
    "wide": wide,
    "stream": stream,
    "count": count,
    "scrub": scrub,
}


def main() -> None:
    which, *arguments = sys.argv[1:]
    side: Side = {"kafka": Kafka, "magnetar": Magnetar}[which](*arguments)
    print("ready", flush=True)
    for line in sys.stdin:
        asked = json.loads(line)
        print(json.dumps(OPERATIONS[asked.pop("op")](side, **asked)), flush=True)
    side.spark.stop()


if __name__ == "__main__":
    main()
