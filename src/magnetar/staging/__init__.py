"""Exactly-once publishing for jobs that run in many processes and are repeated: staged ledgers and an intent record.

    stager = Stager(ledgers, settings, owner, epoch, partition, attempt, task_attempt_id)     in each task
    await stager.add(topic, entry, rows); staged = await stager.finish()                      nobody can see it yet
    await Sink(store, ledgers, publisher).commit(owner, epoch, staged_of_all_tasks)           on the driver: now all can

Stage:     a task writes final entries into ledgers of its own, which no topic names.
Decide:    the driver names the ledgers that count in one intent record. Creating it is the commit point.
Publish:   each topic's broker copies what the intent names, once, whoever asks for it and how often.
Finish:    the epoch is noted as done; intent and staged ledgers go.
Owner:     who publishes, over all its restarts; epochs of one owner are published in order.
Read next: records.py, stage.py, commit.py, sweeper.py; docs/staging.md
"""
