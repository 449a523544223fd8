"""Scrub: every replica of every entry of every ledger is read from its bookie and verified, by all of Spark's cores.

    result = run(spark, ScrubOptions(cluster=ClusterOptions.of()))
    result.is_clean, result.findings

Order:     the driver reads the list of ledgers and their metadata through the broker, and cuts it into ranges
           (replicas.py). Tasks read the ranges straight from the bookies. If asked, ledgers with missing or
           damaged replicas are marked where BookKeeper's auto-recovery looks.
Limits:    a closed ledger is verified up to its last entry. An open one is verified as far as its bookies know that it
           is confirmed: later entries may be anywhere.
"""

from __future__ import annotations

import math
import os
import time
from collections.abc import AsyncIterator, Iterable, Iterator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, fields
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pyarrow as pa

from magnetar.errors import ArgumentError, LacUnknownError, NoSuchLedgerError, OutcomeUnknownError
from magnetar.ids import BookieId, LedgerId
from magnetar.ledger.client import LedgerClient
from magnetar.ledger.reading.lac import read_lac
from magnetar.metadata.bookkeeper.ledger_codec import decode, encode
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.runtime.gather import completed_bounded, gather_bounded
from magnetar.spark import loop_thread
from magnetar.spark.cluster import Cluster, ClusterOptions, cluster
from magnetar.spark.pipelines.jobs import SILENT, Reporter, tasks_shown, translated
from magnetar.spark.pipelines.replicas import (
    Finding,
    ReplicaRange,
    ReplicaReads,
    ScrubResult,
    Skipped,
    What,
    keys_of,
    replica_ranges,
)

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

_METADATA_AT_ONCE: Final = 64


@dataclass(frozen=True, slots=True)
class Plan:
    ledgers: int
    work: list[tuple[ReplicaRange, LedgerMetadata]]
    skipped: list[Skipped]


async def make_plan(client: LedgerClient, only: Sequence[int] = ()) -> Plan:
    """Raises NoSuchLedgerError if a named ledger does not exist."""
    ids = list(only) or [ledger_id async for ledger_id in client.list()]
    look = partial(_look, client, must_exist=bool(only))
    found = await gather_bounded([partial(look, ledger_id) for ledger_id in ids], _METADATA_AT_ONCE)
    ledgers = [known for known in found if isinstance(known, tuple)]
    work = [(wanted, metadata) for metadata, last in ledgers for wanted in replica_ranges(metadata, last)]
    return Plan(len(ledgers), work, [known for known in found if isinstance(known, Skipped)])


async def _look(
    client: LedgerClient, ledger_id: int, *, must_exist: bool
) -> tuple[LedgerMetadata, int] | Skipped | None:
    """Returns the ledger and the last entry to verify; None if it was deleted since."""
    try:
        metadata = await client.metadata(ledger_id)
        if metadata.digest_type is None:
            return Skipped(ledger_id, "its metadata does not say how its entries are sealed: an old release made it")
        last = await read_lac(metadata, keys_of(metadata), client.context)
    except NoSuchLedgerError:
        if must_exist:
            raise
        return None
    except LacUnknownError as error:
        return Skipped(ledger_id, str(error))
    return metadata, last


_TASK_BYTES: Final = 128 * 2**20  # A task costs 60 ms before its first range.
_TASKS_MAX: Final = 4_000
_RANGES_AT_ONCE: Final = 4  # In one task, so that one bookie's disk is busy while another's answer is verified.
_PLAN_SECONDS_MAX: Final = 3_600.0
_MARK_SECONDS_MAX: Final = 3_600.0
_MARK_TRIES_MAX: Final = 3

_RANGES = pa.schema([*((each.name, pa.int64()) for each in fields(ReplicaRange)), ("metadata", pa.binary())])
_TEXTS: Final = ("bookie", "what", "why")
_FOUND = pa.schema([(each.name, pa.string() if each.name in _TEXTS else pa.int64()) for each in fields(Finding)])
_FOUND_DDL: Final = ", ".join(f"{name} {'string' if name in _TEXTS else 'long'}" for name in _FOUND.names)


@dataclass(frozen=True, slots=True, kw_only=True)
class ScrubOptions:
    cluster: ClusterOptions
    ledgers: tuple[int, ...] = ()
    """Only these; empty: all of the cluster."""
    mark: bool = False


def run(spark: SparkSession, options: ScrubOptions, reporter: Reporter = SILENT) -> ScrubResult:
    found = cluster(options.cluster)
    reporter.show("listing ledgers", 0, None)
    plan = loop_thread.run(make_plan(found.ledgers, options.ledgers), _PLAN_SECONDS_MAX)
    began = time.monotonic()
    findings = _verify(spark, options.cluster, plan, reporter) if plan.work else []
    seconds = time.monotonic() - began
    wrong = tuple(sorted(finding for finding in findings if finding.what is not What.VERIFIED))
    marked = loop_thread.run(_mark(found, wrong), _MARK_SECONDS_MAX) if options.mark else 0
    good = [finding for finding in findings if finding.what is What.VERIFIED]
    return ScrubResult(
        ledgers=plan.ledgers,
        replicas=sum(finding.entries for finding in good),
        size_bytes=sum(finding.size_bytes for finding in good),
        seconds=seconds,
        findings=wrong,
        skipped=tuple(plan.skipped),
        marked=marked,
    )


def _verify(spark: SparkSession, options: ClusterOptions, plan: Plan, reporter: Reporter) -> list[Finding]:
    total = sum(wanted.size_bytes for wanted, _ in plan.work)
    cores = spark.sparkContext.defaultParallelism
    tasks = min(len(plan.work), max(cores, math.ceil(total / _TASK_BYTES)), _TASKS_MAX)
    with translated("the scrub failed"), tasks_shown(spark, reporter, "verifying"):
        ranges = spark.createDataFrame(_table(plan.work)).repartition(tasks)
        found: pa.Table = ranges.mapInArrow(partial(verify_batches, options), _FOUND_DDL).toArrow()
    return [Finding(**(row | {"what": What(row["what"])})) for row in found.to_pylist()]


def _table(work: Sequence[tuple[ReplicaRange, LedgerMetadata]]) -> pa.Table:
    rows = [
        {name: getattr(wanted, name) for name in _RANGES.names if name != "metadata"} | {"metadata": encode(metadata)}
        for wanted, metadata in work
    ]
    return pa.Table.from_pylist(rows, schema=_RANGES)


def verify_batches(options: ClusterOptions, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Runs in a task, with its ranges."""
    client = cluster(options).ledgers
    for batch in batches:
        for findings in loop_thread.iterate(verify_ranges(client, _ranges(batch))):
            rows = [{name: getattr(finding, name) for name in _FOUND.names} for finding in findings]
            yield pa.RecordBatch.from_pylist(rows, schema=_FOUND)


def _ranges(batch: pa.RecordBatch) -> list[tuple[ReplicaRange, LedgerMetadata]]:
    found = []
    for row in batch.to_pylist():
        metadata = decode(LedgerId(row["ledger_id"]), row.pop("metadata"), node_created_ms=0)
        found.append((ReplicaRange(**row), metadata))
    return found


async def verify_ranges(
    client: LedgerClient, work: Sequence[tuple[ReplicaRange, LedgerMetadata]]
) -> AsyncIterator[list[Finding]]:
    """Verifies a few ranges at once, and yields the findings of each as it is done."""
    reads = ReplicaReads(client)
    works = [partial(reads.verify, wanted, metadata) for wanted, metadata in work]
    async with aclosing(completed_bounded(works, _RANGES_AT_ONCE)) as results:
        async for findings in results:
            yield findings


async def _mark(found: Cluster, wrong: Sequence[Finding]) -> int:
    marks = UnderreplicationMarks(found.store, BookKeeperPaths(found.settings.ledgers_root))
    faulty: dict[int, dict[str, None]] = {}
    for finding in wrong:
        if finding.what.is_fault:
            faulty.setdefault(finding.ledger_id, {})[finding.bookie] = None
    if faulty:
        await marks.prepare()
    now_ms = int(time.time() * 1000)
    return sum([await _mark_one(marks, ledger_id, list(bookies), now_ms) for ledger_id, bookies in faulty.items()])


async def _mark_one(marks: UnderreplicationMarks, ledger_id: int, bookies: Sequence[str], now_ms: int) -> bool:
    replicas = [BookieId(bookie) for bookie in bookies]
    for _ in range(_MARK_TRIES_MAX - 1):
        try:
            return await marks.mark(LedgerId(ledger_id), replicas, now_ms)
        except OutcomeUnknownError:  # Marking once more does no harm.
            continue
    return await marks.mark(LedgerId(ledger_id), replicas, now_ms)


_PIECE_BYTES: Final = 4 * 2**20
_BYTES_MAX: Final = 2 * 2**30
_BYTES_MIN: Final = 2**20
_SECONDS_MAX: Final = 10.0


def read_speed(directory: Path) -> float:
    """Returns bytes a second, of the largest files below it, one after the other, none of them from memory. Raises
    ArgumentError if there is too little to measure."""
    try:
        files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
        files.sort(key=lambda path: path.stat().st_size, reverse=True)
        return _measured(directory, files)
    except OSError as error:
        raise ArgumentError(f"the disk of {directory} cannot be measured: {error.strerror or error}") from None


def _measured(directory: Path, files: list[Path]) -> float:
    done, began = 0, time.monotonic()
    for path in files:
        if done >= _BYTES_MAX or time.monotonic() - began > _SECONDS_MAX:
            break
        done += _read(path, _BYTES_MAX - done)
    seconds = time.monotonic() - began
    if done < _BYTES_MIN:
        raise ArgumentError(f"{directory} has {done} bytes of files: too little to measure a disk by")
    return done / seconds


def _read(path: Path, bytes_max: int) -> int:
    buffer = bytearray(_PIECE_BYTES)
    done = 0
    with path.open("rb", buffering=0) as file:
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_SEQUENTIAL)
        while done < bytes_max and (count := file.readinto(buffer)):
            done += count
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    return done
