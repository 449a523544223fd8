"""DataFrames into topics, exactly once.

Only writers.py imports pyspark.
Read next: plan.py, targets.py, tasks.py (executors), writers.py (Spark's side), docs/spark-sink.md
"""
