"""Entries as they are stored, decoded into Arrow record batches. Nothing here imports pyspark or does any I/O.

Read next: runs.py (the input), columns.py (the output), options.py, decoder.py; docs/spark-columns.md
"""

from magnetar.spark.decoding.columns import Column, Columns, raw_columns, topic_columns
from magnetar.spark.decoding.decoder import DecodeStatistics, EntryDecoder
from magnetar.spark.decoding.options import DecodeOptions
from magnetar.spark.decoding.runs import EntryRun, StoredEntry

__all__ = [
    "Column",
    "Columns",
    "DecodeOptions",
    "DecodeStatistics",
    "EntryDecoder",
    "EntryRun",
    "StoredEntry",
    "raw_columns",
    "topic_columns",
]
