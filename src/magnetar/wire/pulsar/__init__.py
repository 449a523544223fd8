"""The binary protocol between Pulsar's clients and brokers, in both roles, byte for byte as Apache's.

Invariant: a decoded value owns its bytes, except `Frame.headers_and_payload` and the offsets of `hot_path`: they
           point into the receive buffer, and the caller copies what it keeps.
Read next: frames.py, hot_path.py, encode.py (frames that leave), entry.py (stored messages), docs/pulsar-protocol.md
"""
