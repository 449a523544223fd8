"""What pipelines read and write: topics, through format("magnetar"); files, on all file systems that Spark can write.

Limits:    files (the local disk, HDFS, S3) go through Spark's own JVM, which is slow: for the few small files of a
           pipeline's output, and for listing it.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import unquote

from magnetar.client.topics import full_name, partition_name
from magnetar.spark import loop_thread
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster
from magnetar.spark.pipelines.jobs import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_SECONDS_MAX: Final = 60.0


def source_options(options: ClusterOptions, topic: str) -> dict[str, str]:
    return {"serviceUrl": options.service_url, "adminUrl": options.admin_url, "topic": topic}


def read_topic(spark: SparkSession, options: ClusterOptions, topic: str, **more: str) -> DataFrame:
    """Reads the present messages, headers included."""
    chosen = source_options(options, full_name(topic)) | {"includeHeaders": "true"} | more
    return spark.read.format("magnetar").options(**chosen).load()


def require_topic(options: ClusterOptions, topic: str) -> None:
    """Raises TopicNotFoundError before anything is begun, or BrokerUnavailableError if no broker answers."""
    loop_thread.run(_look(cluster(options), topic), _SECONDS_MAX)


async def _look(found: Cluster, topic: str) -> None:
    partitions = await found.partitions(topic)
    await found.segments(partition_name(topic, 0) if partitions else topic)


def write_topic(messages: DataFrame, options: ClusterOptions, topic: str, job_id: str) -> None:
    """Writes all rows or none, once for this id."""
    chosen = source_options(options, full_name(topic)) | ({"jobId": job_id} if job_id else {})
    messages.write.format("magnetar").options(**chosen).mode("append").save()


@dataclass(frozen=True, slots=True)
class FileStatus:
    path: str
    """The path as the file system names it, with its scheme."""
    size_bytes: int
    modified_ms: int


def plain_path(path: str) -> str:
    """Returns one form: `file:/a` and `file:///a` are the same file, and both are in use."""
    scheme, colon, rest = path.partition(":")
    return f"{scheme}:/{rest.lstrip('/')}" if colon else path


def files_read(rows: DataFrame) -> list[str]:
    """Returns the files of a DataFrame, as the file system names them: Spark gives URLs, in which a space is `%20`."""
    return [unquote(path) for path in rows.inputFiles()]


class Files:
    """Takes paths as Spark does: relative ones and those without a scheme are of Spark's default file system."""

    def __init__(self, spark: SparkSession) -> None:
        context: Any = spark.sparkContext
        self._jvm = context._jvm
        self._settings = context._jsc.hadoopConfiguration()

    def full(self, path: str) -> str:
        with self._at(path) as (system, found):
            return str(system.makeQualified(found).toString())

    def exists(self, path: str) -> bool:
        with self._at(path) as (system, found):
            return bool(system.exists(found))

    def is_empty(self, path: str) -> bool:
        """Reports whether nothing exists at the path, or an empty directory."""
        with self._at(path) as (system, found):
            return not system.exists(found) or (
                system.getFileStatus(found).isDirectory() and not len(system.listStatus(found))
            )

    def read_text(self, path: str) -> str:
        with self._at(path) as (system, found):
            stream = system.open(found)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write_text(self, path: str, text: str, *, replace: bool = True) -> None:
        """Writes a file; without `replace` an existing one is an error."""
        with self._at(path) as (system, found):
            stream = system.create(found, replace)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def delete(self, path: str) -> None:
        with self._at(path) as (system, found):
            system.delete(found, False)

    def list(self, path: str) -> list[FileStatus]:
        """Returns all files below, sorted by path."""
        with self._at(path) as (system, found):
            if not system.exists(found):
                return []
            listing, files = system.listFiles(found, True), []
            while listing.hasNext():
                status = listing.next()
                name = str(status.getPath().toString())
                files.append(FileStatus(name, int(status.getLen()), int(status.getModificationTime())))
        return sorted(files, key=lambda file: file.path)

    @contextlib.contextmanager
    def _at(self, path: str) -> Iterator[tuple[Any, Any]]:
        with translated(path):
            found = self._jvm.org.apache.hadoop.fs.Path(path)
            yield found.getFileSystem(self._settings), found
