"""What lies beside the Parquet files of an archive: whose it is, how far it has come, and who works on it.

    PATH/date=2026-11-16/hour=9/partition=0/part-….parquet
    PATH/_magnetar/archive.json     which topic it is of
    PATH/_magnetar/checkpoint       how far it has come: Spark's own
    PATH/_magnetar/lock             who works on it now
    PATH/_spark_metadata            which files count: Spark's own

Tidy:      a run that was killed leaves files that its log does not name. Spark passes over them, other readers of
           Parquet do not, so they are deleted before the next run and after each. Only one may work on an archive at a
           time: to another, files that are being written look like such leavings.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from magnetar.errors import ConfigError
from magnetar.spark.pipelines.files import Files, files_read, plain_path

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FORMAT: Final = 1
_DATA_FILE = re.compile(r"/date=[^/]+/hour=[^/]+/partition=[^/]+/part-[^/]+\.parquet$")


class ArchiveHome:
    def __init__(self, spark: SparkSession, path: str) -> None:
        self._spark = spark
        self._files = Files(spark)
        self.path = self._files.full(path.rstrip("/") or "/")
        self.checkpoint = f"{self.path}/_magnetar/checkpoint"
        self._record = f"{self.path}/_magnetar/archive.json"
        self._lock = f"{self.path}/_magnetar/lock"
        self._log = f"{self.path}/_spark_metadata"

    def claim(self, topic: str) -> None:
        """For this topic: a new archive, or one that it has already. ConfigError for anything else."""
        if self._files.exists(self._record):
            self._require(topic, self._files.read_text(self._record))
        elif self._files.is_empty(self.path):
            self._files.write_text(self._record, json.dumps({"format": FORMAT, "topic": topic}, indent=2) + "\n")
        else:
            raise ConfigError(f"{self.path} is no archive and not empty: give another path")

    def _require(self, topic: str, text: str) -> None:
        try:
            record = json.loads(text)
            known, of_topic = record["format"], record["topic"]
        except (ValueError, KeyError, TypeError):
            raise ConfigError(f"{self._record} is damaged: give another path, or delete this archive") from None
        if known != FORMAT:
            raise ConfigError(f"{self.path} is an archive of format {known}; this release writes {FORMAT}")
        if of_topic != topic:
            raise ConfigError(f"{self.path} is the archive of {of_topic}, not of {topic}: give another path")

    def exists(self) -> bool:
        return self._files.exists(self._record)

    def require_log(self) -> None:
        """ConfigError if there are files of which nobody knows whether they count."""
        if not self._files.exists(self._log) and self._data_files():
            raise ConfigError(f"{self._log} is gone, and with it what counts in this archive: make a new one elsewhere")

    # --- one at a time ------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """ConfigError while somebody else works on it. A lock that a killed process of this machine left is taken."""
        if self._files.exists(self._lock):
            holder = _parsed(self._files.read_text(self._lock))
            if _may_live(holder):
                raise ConfigError(
                    f"{self.path} is being written by process {holder.get('pid')} on {holder.get('host')}: wait for it,"
                    f" or delete {self._lock} if that process is gone"
                )
            self._files.delete(self._lock)
        self._files.write_text(self._lock, json.dumps(_myself()) + "\n", replace=False)
        try:
            yield
        finally:
            self._files.delete(self._lock)

    # --- what counts --------------------------------------------------------------------------------------------------

    def tidy(self) -> int:
        """Deletes what a killed run left; returns how many files that were."""
        if not self._files.exists(self._log):
            return 0
        counting = {plain_path(path) for path in self.files()}
        left = [path for path in self._data_files() if plain_path(path) not in counting]
        for path in left:
            self._files.delete(path)
        return len(left)

    def files(self) -> list[str]:
        """Those that count."""
        return files_read(self._spark.read.schema("value binary").parquet(self.path))

    def _data_files(self) -> list[str]:
        return [file.path for file in self._files.list(self.path) if _DATA_FILE.search(file.path)]


def _myself() -> dict[str, Any]:
    pid = os.getpid()
    return {"host": socket.gethostname(), "pid": pid, "started": _started(pid)}


def _parsed(text: str) -> dict[str, Any]:
    try:
        found = json.loads(text)
    except ValueError:  # Its writer was killed while it wrote.
        return {}
    return found if isinstance(found, dict) else {}


def _may_live(holder: dict[str, Any]) -> bool:
    """Of another machine nobody here can tell."""
    if not holder or holder.get("host") != socket.gethostname():
        return bool(holder)
    return _started(int(holder["pid"])) == holder.get("started")


def _started(pid: int) -> str:
    """When a process of this machine began, in the kernel's own words; empty if there is none."""
    try:
        return (Path("/proc") / str(pid) / "stat").read_text().rsplit(")", 1)[1].split()[19]
    except (OSError, IndexError):
        return ""
