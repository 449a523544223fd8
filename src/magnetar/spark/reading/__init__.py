"""Topics as rows: what the user asks for, where that is in the topics, how it is divided, fetched and decoded.

    options.py         the options of a read, checked
    places.py          startingOffsets, endingOffsets and ranges, as the user writes them, per topic
    topics.py          which topics and partitions are meant
    spots.py           a place in a topic partition; offsets of streams as JSON
    gaps.py            what retention removed, what was lost, what is another topic now
    ranges.py          entries of ledgers between two spots, divided evenly among tasks
    fetching.py        entries of a range, from bookies or through the broker (broker_road.py)
    rows.py            entries to Arrow batches
    batch_plan.py      a batch query: from options to tasks
    following.py       a streaming query: how far it may go (shares.py), and from where to where a batch goes
    progress.py        a subscription that shows how far a stream has come
    batch_reader.py, stream_reader.py    what Spark calls

Only the last two import pyspark.
Read next: docs/spark.md
"""
