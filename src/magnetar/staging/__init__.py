"""Exactly-once publishing for jobs that run in many processes and are repeated: staged ledgers and an intent record.

Order:     stage: a task writes final entries into ledgers of its own, which no topic names.
           decide: the driver names the ledgers that count in one intent record. Creating it is the commit point.
           publish: each topic's broker copies the ledgers of the intent, once, however often it is asked.
           finish: the epoch is noted as done; intent and staged ledgers are deleted.
           An owner publishes over all its restarts; epochs of one owner are published in order.
Read next: records.py, stager.py, sink.py, sweeper.py; docs/staging.md
"""
