"""Our ledger client beside Apache's Java client, on Apache's bookies and on a cluster of both makes.

Read next: conftest.py (what checks share), ours.py (our client as the checks use it), doomed.py (writers that are
killed), docs/interop.md
"""
