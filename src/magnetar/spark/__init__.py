"""Topics as DataFrames: the data source `format("magnetar")`, its sink, and the pipelines that ship with them.

    import magnetar.spark
    magnetar.spark.register(spark)
    spark.read.format("magnetar").option("topic", "orders").load()

Read next: docs/spark.md; source.py, reading/, writing/, pipelines/
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes `format("magnetar")` known to a session, and the session the active one of the calling thread.

    Spark looks for Python sources in the active session of the thread, and a `threading.Thread` has none: call this
    once in each thread that reads or writes. Where magnetar is installed for the Python that Spark starts, threads with
    an active session, such as the main thread, find the source without it.
    """
    from magnetar.spark.source import MagnetarSource

    spark.dataSource.register(MagnetarSource)
    session = getattr(spark, "_jsparkSession", None)  # None: Spark Connect, whose server knows the session.
    if session is not None:
        sessions: Any = spark._jvm
        sessions.org.apache.spark.sql.classic.SparkSession.setActiveSession(session)
