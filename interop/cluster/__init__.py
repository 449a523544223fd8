"""Brokers and bookies of both makes in one cluster: what one broker leaves, the other continues.

Read next: mixed.py (the processes), content.py (what is written and found again), docs/moving.md
"""
