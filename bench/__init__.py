"""Measured, beside a peer, in the same run: `make bench [ONLY=part]`.

Each row takes samples of ours and of the peer in turn (ours, theirs, ours, theirs, ours, theirs), so that what else the
machine does hits both. A part is named after the folder it measures.
Read next: interleave.py (how a row is measured), report.py (the table and build/bench.json)
"""
