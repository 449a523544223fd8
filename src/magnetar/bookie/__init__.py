"""The storage node: its identity, its answers, its start and its end.

Read next: docs/bookie.md; then identity.py (with directories.py), registration.py (with read_only.py), requests.py
           (with connection.py)
"""
