"""Kafka's protocol without I/O, for both roles: frames, requests and answers by tables, and batches of records.

* `codec.py` compiles tables of fields into functions. `tables.py`, `group_tables.py` and `admin_tables.py` have the
  tables.
* `frames.py` has the sizes and headers around requests and answers; `error_codes.py` the numbers of errors.
* `batches.py` has the head of a batch and the records inside, `compression.py` what compresses them.

Read next: broker/kafka/front_end.py; docs/kafka.md
"""
