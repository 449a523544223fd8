"""How Spark finds `format("magnetar")` by itself: it imports all top-level modules that are named `pyspark_…`."""

from magnetar.spark.source import MagnetarSource as DefaultSource

__all__ = ["DefaultSource"]
