"""Bookies driven by Apache's Java client and shell. The same checks run on Apache's bookies and on ours.

Read next: part.py (what a check is given), client.py (the Java client seen from Python), docs/interop.md
"""
