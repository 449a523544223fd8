"""Entries as they are stored, decoded into Arrow record batches. Nothing here imports pyspark or does any I/O.

    runs.py             EntryRun: entries of one ledger that follow one another, as a reader hands them in
    columns.py          Columns: what comes out; raw columns, or the topic's schema as typed ones; Arrow and DDL types
    options.py          DecodeOptions: what is done with encrypted, incomplete and old-schema messages
    decoder.py          EntryDecoder: feed(run), finish()

Read next: decoder.py; docs/spark-columns.md
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
