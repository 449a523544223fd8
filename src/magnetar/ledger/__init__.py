"""The replication protocol: ledgers written to, and read from, a quorum of bookies.

Read next: client.py (what users call), ARCHITECTURE.md (the folders), docs/ledger-protocol.md
"""
