"""A topic as a chain of ledgers: the log, its cursors, retention and compaction.

Read next: position.py and chain.py (where an entry is), log.py (the log), cursor.py (who has read what), compaction.py
"""
