"""What the pipelines decide without Spark."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from magnetar.cli.pipeline import print_scrub
from magnetar.errors import ConfigError
from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines.archive import ArchiveOptions, _may_live, _myself, _parsed, _started
from magnetar.spark.pipelines.compact import CompactOptions
from magnetar.spark.pipelines.endpoints import files_read, plain_path
from magnetar.spark.pipelines.jobs import is_slow_start
from magnetar.spark.pipelines.replicas import Finding, ScrubResult, Skipped, What
from magnetar.spark.pipelines.scrub import read_speed

CLUSTER = ClusterOptions.of()


def test_a_lock_of_this_process_holds_and_one_of_a_process_that_ended_does_not() -> None:
    assert _may_live(_myself())
    assert not _may_live({"host": socket.gethostname(), "pid": 2**22 + 1, "started": "1"})
    assert not _may_live(_myself() | {"started": "before"}), "another process has its number now"


def test_of_another_machine_nobody_can_tell() -> None:
    assert _may_live({"host": "elsewhere", "pid": os.getpid(), "started": ""})


@pytest.mark.parametrize("text", ["", "{", "[1]"])
def test_a_lock_that_was_not_written_wholly_does_not_hold(text: str) -> None:
    assert not _may_live(_parsed(text))


def test_a_process_that_is_not_there_never_began() -> None:
    assert _started(os.getpid())
    assert _started(2**22 + 1) == ""


@pytest.mark.parametrize("path", ["file:/a/b", "file:///a/b"])
def test_both_forms_of_a_local_path_are_one(path: str) -> None:
    assert plain_path(path) == "file:/a/b"


def test_files_that_spark_names_as_urls_are_those_of_the_file_system() -> None:
    rows: Any = SimpleNamespace(inputFiles=lambda: ["file:///my%20orders/100%25/h%C3%A9/a+b.parquet"])
    assert files_read(rows) == ["file:///my orders/100%/hé/a+b.parquet"]


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({}, "a topic or a path"),
        ({"to_topic": "u", "to_path": "/u"}, "a topic or a path"),
        ({"to_topic": "public/default/t"}, "into itself"),
    ],
)
def test_compaction_goes_to_one_other_place(options: dict[str, str], said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        CompactOptions(cluster=CLUSTER, topic="t", **options)  # type: ignore[arg-type]


def test_files_are_not_written_more_often_than_every_second() -> None:
    with pytest.raises(ConfigError, match="every second"):
        ArchiveOptions(cluster=CLUSTER, topic="t", path="/p", every_s=0)


def test_only_a_worker_that_was_too_slow_to_start_is_tried_again() -> None:
    assert is_slow_start("SparkException: Python worker failed to connect back.")
    assert not is_slow_start("SparkException: Python worker exited unexpectedly (crashed)")


def test_the_speed_of_a_disk_is_that_of_its_files(tmp_path: Path) -> None:
    (tmp_path / "small").write_bytes(b"x")
    with pytest.raises(ConfigError, match="too little"):
        read_speed(tmp_path)
    (tmp_path / "large").write_bytes(bytes(3 * 2**20))
    assert read_speed(tmp_path) > 0


def test_a_scrub_is_told_in_a_table_and_a_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    result = ScrubResult(
        ledgers=2,
        replicas=30,
        size_bytes=4_000_000,
        seconds=2.0,
        findings=(
            Finding(5, 1, 3, "b:1", What.MISSING, 3),
            Finding(5, 9, 9, "b:2", What.DAMAGED, 1, why="does not match its digest"),
        ),
        skipped=(Skipped(8, "nobody answers"),),
        marked=1,
    )
    print_scrub(result, 8_000_000.0)
    said = capsys.readouterr()
    assert said.out.splitlines() == [
        "LEDGER  ENTRIES  BOOKIE  WHAT     WHY",
        "5       1-3      b:1     missing  -",
        "5       9        b:2     damaged  does not match its digest",
        "2 ledgers, 30 replicas verified, 3 missing, 1 damaged; 4.0 MB in 2.0 s: 2.0 MB/s",
        "the disk reads 8.0 MB/s: the scrub has 25% of that",
        "1 ledger marked as under-replicated",
    ]
    assert said.err == "note: ledger 8 was not verified: nobody answers\n"
    assert not result.is_clean
    assert result.document()["missing"] == 3
