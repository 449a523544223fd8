"""One bookie's disk: what was acknowledged is in the journal, what was flushed is in entry logs and the index.

Invariant: the mark is a sequence number: everything up to and including it is durable in entry logs and index, so
           replay begins after it.
Format:    a run of v2 add frames, as the client sent them, is copied once from the socket's buffer and then shared.
Order:     every submit to the journal gets the next sequence number: 1, 2, 3 and so on.
Read next: storage/journal/journal.py, docs/journal.md
"""
