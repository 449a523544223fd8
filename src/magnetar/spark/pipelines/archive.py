"""Archive: a topic as Parquet files, by date and hour of publishing and by partition; every message once.

    result = run(spark, ArchiveOptions(cluster=ClusterOptions.of(), topic="orders", path="/archive/orders"))

Once:      Spark's checkpoint says how far the archive has come, and the file sink's own log which files count: the run
           after one that was killed goes on as if nothing had happened. For readers that do not know that log, files
           which do not count are deleted (archive_home.py).
Columns:   all of format("magnetar"), headers too, and `date` and `hour` (UTC), which are directories.
Read next: archive_home.py; docs/pipelines.md
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

from magnetar.client.topics import full_name
from magnetar.errors import ConfigError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.archive_home import ArchiveHome
from magnetar.spark.pipelines.failures import is_slow_start, translated
from magnetar.spark.pipelines.progress import SILENT, Reporter, follow
from magnetar.spark.pipelines.topic_frames import require_topic, source_options

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

PARTITION_COLUMNS: Final = ("date", "hour", "partition")
_TRIES_MAX: Final = 4
_DAY_S: Final = 86_400
_HOUR_S: Final = 3_600


@dataclass(frozen=True, slots=True, kw_only=True)
class ArchiveOptions:
    cluster: ClusterOptions
    topic: str
    path: str
    start: str = "earliest"
    """Where a new archive begins: a place as the data source takes it. One that is gone on with stays where it was."""
    follow: bool = False
    """Go on with what comes, until it is interrupted; else end with what is there now."""
    every_s: int = 60
    """While following: so often new files are written."""
    batch_messages: int = 1_000_000
    batch_bytes: int = 512 * 2**20
    """A batch is what is written and committed at once, up to either of these."""
    subscription: str = ""
    """Kept at what is archived: lag tools see it, and nothing is deleted from the topic before it is archived."""
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        if self.every_s < 1:
            raise ConfigError(f"archive: new files are written every second at most, not every {self.every_s} s")


@dataclass(frozen=True, slots=True)
class ArchiveResult:
    topic: str
    path: str
    messages: int
    """Archived in this run."""
    files: int
    """That the archive has now."""
    removed: int
    """Files of earlier runs that did not count."""

    def document(self) -> dict[str, Any]:
        return {
            "topic": self.topic,
            "path": self.path,
            "messages": self.messages,
            "files": self.files,
            "removedFiles": self.removed,
        }


def run(spark: SparkSession, options: ArchiveOptions, reporter: Reporter = SILENT) -> ArchiveResult:
    """ConfigError for a path that is not this topic's; SparkFailedError if the job fails."""
    topic = full_name(options.topic)
    require_topic(options.cluster, topic)
    home = ArchiveHome(spark, options.path)
    home.claim(topic)
    with home.locked(), translated(f"{topic} could not be archived"):
        home.require_log()
        removed = home.tidy()
        rows = _streamed(spark, options, topic, home, reporter)
        removed += home.tidy()
        return ArchiveResult(topic, home.path, rows, len(home.files()), removed)


def read_archive(spark: SparkSession, path: str) -> DataFrame:
    """Its messages, as format("magnetar") has them, with `date` and `hour`."""
    home = ArchiveHome(spark, path)
    if not home.exists():
        raise ConfigError(f"{home.path} is no archive: give the path that `magnetar pipeline archive` wrote to")
    return spark.read.parquet(home.path)


def _streamed(spark: SparkSession, options: ArchiveOptions, topic: str, home: ArchiveHome, reporter: Reporter) -> int:
    """Spark gives its workers ten seconds to start, which is too little on a busy machine. The checkpoint makes another
    try as good as the first."""
    from pyspark.errors import StreamingQueryException

    for _ in range(_TRIES_MAX - 1):
        try:
            return _stream(spark, options, topic, home, reporter)
        except StreamingQueryException as error:
            if not is_slow_start(str(error)):
                raise
    return _stream(spark, options, topic, home, reporter)


def _stream(spark: SparkSession, options: ArchiveOptions, topic: str, home: ArchiveHome, reporter: Reporter) -> int:
    messages = spark.readStream.format("magnetar").options(**_read_options(options, topic)).load()
    writer = (
        with_hours(messages)
        .writeStream.format("parquet")
        .partitionBy(*PARTITION_COLUMNS)
        .option("compression", "zstd")
        .option("checkpointLocation", home.checkpoint)
        .queryName(f"archive of {topic}")
    )
    timed = writer.trigger(processingTime=f"{options.every_s} seconds")
    query = (timed if options.follow else writer.trigger(availableNow=True)).start(home.path)
    return follow(query, reporter, "archiving", forever=options.follow)


def with_hours(messages: DataFrame) -> DataFrame:
    """Counted, as Spark's own functions for them go by the time zone of the session, which may be the caller's."""
    from pyspark.sql import functions as f

    seconds = f.unix_seconds("publish_time")
    days = f.floor(seconds / _DAY_S).cast("int")
    hours = f.floor(f.pmod(seconds, f.lit(_DAY_S)) / _HOUR_S).cast("int")
    return messages.withColumns({"date": f.date_from_unix_date(days), "hour": hours})


def _read_options(options: ArchiveOptions, topic: str) -> dict[str, str]:
    chosen = {
        **source_options(options.cluster, topic),
        "includeHeaders": "true",
        "startingOffsets": options.start,
        "maxMessagesPerTrigger": str(options.batch_messages),
        "maxBytesPerTrigger": str(options.batch_bytes),
        "failOnDataLoss": str(options.fail_on_data_loss).lower(),
    }
    return chosen | ({"subscription": options.subscription} if options.subscription else {})
