"""The verdict of a demonstration: `magnetar pipeline audit` and `scrub` on one Spark, with results below `build/`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from magnetar.spark.cluster import ClusterOptions
from magnetar.spark.pipelines import scrub
from magnetar.spark.pipelines.audit.run import AuditOptions, AuditResult, run
from magnetar.spark.pipelines.jobs import translated
from magnetar.spark.pipelines.replicas import ScrubResult
from magnetar.spark.session import session
from magnetar.testing.processes.servers import BrokerProcess, StandaloneProcess

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
REPORT: Final = "audit-report.html"
_SPARK_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",  # Compiling well would take longer than the work.
}


@contextmanager
def spark_for(output: Path) -> Iterator[SparkSession]:
    """A Spark for a few small jobs, which ends with the block."""
    logging.getLogger().addHandler(logging.NullHandler())  # Without one, a Ctrl-C makes py4j print a stack trace.
    log = output / "spark.log"
    with session("demo", "local[2]", _SPARK_SETTINGS, log) as spark:
        yield spark


def audit(
    spark: SparkSession,
    server: StandaloneProcess | BrokerProcess,
    *,
    logs: Path,
    topics: Sequence[str],
    title: str,
    output: Path,
    tell: Callable[[str], None],
) -> AuditResult:
    """Compares the logs with the topics of the server's cluster. MagnetarError if that is not possible."""
    options = AuditOptions(
        logs=(str(logs),),
        topics=tuple(topics),
        service_url=server.url,
        admin_url=server.admin_url,
        output=str(output),
        report=str(output / REPORT),
        title=title,
    )
    with translated("the audit failed"):
        return run(spark, options, lambda what: tell(f"audit: {what}"))


def count_replicas(spark: SparkSession, server: BrokerProcess) -> ScrubResult:
    """Reads and verifies each replica of each entry of the server's cluster."""
    return scrub.run(spark, scrub.ScrubOptions(cluster=ClusterOptions.of(server.url, server.admin_url)))
