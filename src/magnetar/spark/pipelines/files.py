"""Files on all file systems that Spark can write: the local disk, HDFS, S3. It uses those of Spark's own JVM.

Limits:    it is slow: for the few small files of a pipeline's output, and for listing it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

from magnetar.spark.pipelines.failures import translated

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


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
        with translated(path):
            system, found = self._at(path)
            return str(system.makeQualified(found).toString())

    def exists(self, path: str) -> bool:
        with translated(path):
            system, found = self._at(path)
            return bool(system.exists(found))

    def is_empty(self, path: str) -> bool:
        """Reports whether nothing exists at the path, or an empty directory."""
        with translated(path):
            system, found = self._at(path)
            return not system.exists(found) or (
                system.getFileStatus(found).isDirectory() and not len(system.listStatus(found))
            )

    def read_text(self, path: str) -> str:
        with translated(path):
            system, found = self._at(path)
            stream = system.open(found)
            try:
                return str(self._jvm.org.apache.commons.io.IOUtils.toString(stream, "UTF-8"))
            finally:
                stream.close()

    def write_text(self, path: str, text: str, *, replace: bool = True) -> None:
        """Writes a file; without `replace` an existing one is an error."""
        with translated(path):
            system, found = self._at(path)
            stream = system.create(found, replace)
            try:
                stream.write(bytearray(text.encode()))
            finally:
                stream.close()

    def delete(self, path: str) -> None:
        """Deletes one file, if it exists."""
        with translated(path):
            system, found = self._at(path)
            system.delete(found, False)

    def list(self, path: str) -> list[FileStatus]:
        """Returns all files below, sorted by path."""
        with translated(path):
            system, found = self._at(path)
            if not system.exists(found):
                return []
            listing, files = system.listFiles(found, True), []
            while listing.hasNext():
                status = listing.next()
                name = str(status.getPath().toString())
                files.append(FileStatus(name, int(status.getLen()), int(status.getModificationTime())))
        return sorted(files, key=lambda file: file.path)

    def _at(self, path: str) -> tuple[Any, Any]:
        found = self._jvm.org.apache.hadoop.fs.Path(path)
        return found.getFileSystem(self._settings), found
