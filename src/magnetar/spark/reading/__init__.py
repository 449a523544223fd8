"""Topics as rows: the user's options, their places in the topics, ranges, fetching and decoding.

Only readers.py imports pyspark.

Read next: options.py, ranges.py (a batch query), following.py (a streaming query), stream_offsets.py (gaps),
           fetching.py, docs/spark.md
"""
