"""Topics as rows: the user's options, their places in the topics, ranges, fetching and decoding.

Only batch_reader.py and the stream readers import pyspark.

Read next: options.py, batch_plan.py (a batch query), following.py (a streaming query), ranges.py, fetching.py, rows.py,
           gaps.py, docs/spark.md
"""
