"""A topic as a chain of ledgers: the log, its cursors, retention and compaction.

Read next: position.py and chain.py (where an entry is), topic/log/log.py (the log), topic/cursor/cursors.py (how far
           each subscription is), topic/compaction.py
"""
