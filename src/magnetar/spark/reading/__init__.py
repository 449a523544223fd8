"""Topics as rows: the user's options, their places in the topics, ranges, fetching and decoding.

Only readers.py imports pyspark.

Read next: options.py, resolve_offsets.py (a batch query), following.py (a streaming query), ranges.py, fetching.py,
           rows.py, gaps.py, docs/spark.md
"""
