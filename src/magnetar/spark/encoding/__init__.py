"""Arrow to entries: record batches of Spark become what a producer would have sent, without a loop over messages.

    record batch → Layout          → Messages: value, key, event time, properties
                 → Router          → a destination for every row
                 → encode_messages → the bytes of batched messages, and where each begins
                 → EntryBuilder    → whole entries, each below the broker's limit

Invariant: nothing here imports pyspark, does I/O or knows a clock: the caller passes the time to `EntryEncoder`.
Read next: encoder.py, messages.py
"""
