"""Bookies driven by Apache's Java client and shell. The same checks run on Apache's bookies and on ours.

Read next: conftest.py (what checks share), client.py (the Java client seen from Python), docs/interop.md
"""
