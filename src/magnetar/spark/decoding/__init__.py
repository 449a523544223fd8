"""Entries as they are stored, decoded into Arrow record batches. Nothing here imports pyspark or does any I/O.

Read next: inputs.py, columns.py (the output), decoder.py; docs/spark-columns.md
"""
