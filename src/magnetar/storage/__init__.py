"""One bookie's disk: what was acknowledged is in the journal, what was flushed is in entry logs and the index.

Unit:      a run of v2 add frames, as the client sent them; it is copied once from the socket's buffer and then shared.
Numbers:   every submit to the journal gets the next sequence number: 1, 2, 3 and so on. The mark is such a number:
           everything up to and including it is durable in entry logs and index, so replay begins behind it.
Read next: journal.py, docs/journal.md
"""
