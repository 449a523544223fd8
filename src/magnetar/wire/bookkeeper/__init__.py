"""The wire protocol between BookKeeper's clients and bookies, in both roles, byte for byte as Apache's.

Invariant: a decoded value owns its bytes, so a receive buffer may be reused at once; only `hot_path` returns
           offsets.
Read next: frames.py, messages.py, codes.py, v2.py, v3.py, hot_path.py, ends.py, digests.py, availability.py,
           docs/bookkeeper-protocol.md
"""
