"""Archive: a topic as Parquet files, by date and hour of publishing and by partition; every message once.

    result = run(spark, ArchiveOptions(cluster=ClusterOptions.of(), topic="orders", path="/archive/orders"))

Format:    PATH/date=2026-11-16/hour=9/partition=0/part-….parquet
           PATH/_magnetar/archive.json     the topic of the archive
           PATH/_magnetar/checkpoint       how far it has come: Spark's own
           PATH/_magnetar/lock             the process that works on it now
           PATH/_spark_metadata            the files that count: Spark's own
           The columns are all of format("magnetar"), headers too, and `date` and `hour` (UTC), which are directories.
Invariant: Spark's checkpoint knows how far the archive has come, and the file sink's own log which files count: after a
           run that was killed, the next one continues as if nothing had happened. The killed run leaves files that the
           log does not name. Spark ignores them, other readers of Parquet do not, so they are deleted before the next
           run and after each.
Limits:    one process at a time may work on an archive: another would take files that are being written for leftovers.
Read next: docs/pipelines.md
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.client.topics import full_name
from magnetar.errors import ArgumentError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.endpoints import Files, files_read, plain_path, require_topic, source_options
from magnetar.spark.pipelines.jobs import SILENT, Reporter, follow, is_slow_start, translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


FORMAT: Final = 1
_DATA_FILE = re.compile(r"/date=[^/]+/hour=[^/]+/partition=[^/]+/part-[^/]+\.parquet$")


class ArchiveHome:
    """The files beside the Parquet files of an archive: its topic, its progress, its lock."""

    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._files = Files(spark)
        self.path = self._files.full(path.rstrip("/") or "/")
        self.checkpoint = f"{self.path}/_magnetar/checkpoint"
        self._record = f"{self.path}/_magnetar/archive.json"
        self._lock = f"{self.path}/_magnetar/lock"
        self._log = f"{self.path}/_spark_metadata"

    def claim(self, topic: str) -> None:
        """Takes a new archive for this topic, or one that it has already. Raises ArgumentError for anything else."""
        if self._files.exists(self._record):
            self._require(topic, self._files.read_text(self._record))
        elif self._files.is_empty(self.path):
            self._files.write_text(self._record, json.dumps({"format": FORMAT, "topic": topic}, indent=2) + "\n")
        else:
            raise ArgumentError(f"{self.path} is not an archive, and it is not empty: give another path")

    def _require(self, topic: str, text: str) -> None:
        try:
            record = json.loads(text)
            known, of_topic = record["format"], record["topic"]
        except (ValueError, KeyError, TypeError):
            raise ArgumentError(f"{self._record} is damaged: give another path, or delete this archive") from None
        if known != FORMAT:
            raise ArgumentError(f"{self.path} is an archive of format {known}; this release writes {FORMAT}")
        if of_topic != topic:
            raise ArgumentError(f"{self.path} is the archive of {of_topic}, not of {topic}: give another path")

    def exists(self) -> bool:
        return self._files.exists(self._record)

    def require_log(self) -> None:
        """Raises ArgumentError if there are files of which it is unknown whether they count."""
        if not self._files.exists(self._log) and self._data_files():
            raise ArgumentError(
                f"{self._log} is missing, so it is not known which files belong to this archive: create another archive"
            )

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Raises ArgumentError while another process works on it. A lock of a killed process of this machine is
        taken."""
        if self._files.exists(self._lock):
            holder = _parsed(self._files.read_text(self._lock))
            if _may_live(holder):
                raise ArgumentError(
                    f"{self.path} is being written by process {holder.get('pid')} on {holder.get('host')}: wait for it,"
                    f" or delete {self._lock} if that process has ended"
                )
            self._files.delete(self._lock)
        self._files.write_text(self._lock, json.dumps(_myself()) + "\n", replace=False)
        try:
            yield
        finally:
            self._files.delete(self._lock)

    def tidy(self) -> int:
        """Deletes the leftovers of a killed run; returns their number."""
        if not self._files.exists(self._log):
            return 0
        counting = {plain_path(path) for path in self.files()}
        left = [path for path in self._data_files() if plain_path(path) not in counting]
        for path in left:
            self._files.delete(path)
        return len(left)

    def files(self) -> list[str]:
        return files_read(self._spark.read.schema("value binary").parquet(self.path))

    def _data_files(self) -> list[str]:
        return [file.path for file in self._files.list(self.path) if _DATA_FILE.search(file.path)]


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # Its writer was killed during the write.
        return {}
    return found if isinstance(found, dict) else {}


def _may_live(holder: dict[str, Any]) -> bool:
    """Reports whether it may live. For another machine, this is unknown here."""
    if not holder or holder.get("host") != socket.gethostname():
        return bool(holder)
    return _started(int(holder["pid"])) == holder.get("started")


def _started(pid: int) -> str:
    """Returns the start time of a process of this machine, as the kernel writes it; empty if it does not exist."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""


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
    """The beginning of a new archive: a place as the data source takes it. An existing archive keeps its own."""
    follow: bool = False
    """Continue with new messages until an interrupt; otherwise stop at the present end."""
    every_s: int = 60
    """Seconds between new files in this mode."""
    batch_messages: int = 1_000_000
    batch_bytes: int = 512 * 2**20
    """A batch is written and committed at once, up to either of these."""
    subscription: str = ""
    """Kept at the archived position: lag tools see it, and nothing is deleted from the topic before it is archived."""
    fail_on_data_loss: bool = True

    def __post_init__(self) -> None:
        if self.every_s < 1:
            raise ArgumentError(f"archive: new files are written every second at most, not every {self.every_s} s")


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
    """Raises ArgumentError for a path that is not this topic's; SparkFailedError if the job fails."""
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
    """Returns its messages, as format("magnetar") has them, with `date` and `hour`."""
    home = ArchiveHome(spark, path)
    if not home.exists():
        raise ArgumentError(f"{home.path} is not an archive: give the path that `magnetar pipeline archive` wrote to")
    return spark.read.parquet(home.path)


def _streamed(spark: SparkSession, options: ArchiveOptions, topic: str, home: ArchiveHome, reporter: Reporter) -> int:
    """Repeats a slow start. Spark gives its workers ten seconds to start, which is too little on a busy machine. With
    the checkpoint, another try is as good as the first."""
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
    """Computes the hours, as Spark's own functions use the time zone of the session, which may be the caller's."""
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
