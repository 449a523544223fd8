"""Topics as DataFrames: the data source `format("magnetar")`, its sink, and the pipelines that ship with them.

    import magnetar.spark
    magnetar.spark.register(spark)
    spark.read.format("magnetar").option("topic", "orders").load()

Read next: docs/spark.md; source.py, reading/, writing/, pipelines/
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

__all__ = ["register"]


def register(spark: SparkSession) -> None:
    """Makes `format("magnetar")` known to a session. Where magnetar is installed, Spark finds it without that, too."""
    from magnetar.spark.source import MagnetarSource

    spark.dataSource.register(MagnetarSource)
