"""Decides which bookies hold an entry, when enough of them have answered, and where new entries go. No I/O, no clock.

When an entry has enough acknowledgements is the rule `QuorumSizes.is_acknowledged` (sizes.py);
ledger/writing/pending_adds.py applies it to a whole window of entries at once.

Read next: sizes.py, coverage.py, placement.py (the policy interface), rack_aware.py, docs/quorum.md
"""
