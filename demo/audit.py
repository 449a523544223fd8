"""The verdict of a demonstration: `magnetar pipeline audit` on a Spark of its own, with all results below `build/`."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from magnetar.spark.pipelines.audit.run import AuditOptions, AuditResult, run
from magnetar.spark.pipelines.jobs import translated
from magnetar.spark.session import session
from magnetar.testing.processes.servers import BrokerProcess, StandaloneProcess

BUILD: Final = Path(__file__).resolve().parent.parent / "build"
REPORT: Final = "audit-report.html"
_SPARK_SETTINGS: Final = {
    "spark.sql.shuffle.partitions": "2",
    "spark.driver.defaultJavaOptions": "-XX:TieredStopAtLevel=1",  # Compiling well would take longer than the work.
}


def audit(
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
    logging.getLogger().addHandler(logging.NullHandler())  # Without one, a Ctrl-C makes py4j print a stack trace.
    with session("demo", "local[2]", _SPARK_SETTINGS, output / "spark.log") as spark, translated("the audit failed"):
        return run(spark, options, lambda what: tell(f"audit: {what}"))
