"""The replication protocol: ledgers written to, and read from, a quorum of bookies.

* `client.py` creates, opens, recovers, deletes and lists ledgers.
* `ledger/metadata/` creates and changes a ledger's metadata.
* `ledger/channels/` knows the bookies of a cluster and holds the connections to them.
* `ledger/writing/` appends entries, acknowledges them in order, and replaces failed bookies.
* `ledger/reading/` reads entries, and follows the end of an open ledger.
* `ledger/recovery/` fences a ledger and closes what its writer left open.

Read next: docs/ledger-protocol.md
"""
