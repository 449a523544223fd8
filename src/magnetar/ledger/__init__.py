"""The replication protocol: ledgers written to, and read from, a quorum of bookies.

    client.py              LedgerClient: create, open, recover, delete, list
    writer.py              adds, acknowledged in order; write_engine.py, pending_adds.py, ensemble_change.py below it
    reader.py              entries and the tail of a ledger; reads.py, lac.py below it
    recovery.py            fencing, and closing what its writer left open
    channel.py             one bookie, as all of these see it; bookie_channel.py speaks to it
    bookies.py             which bookies there are, and the channels to them
    local_transport.py     a bookie in the same process, without a socket

Read next: docs/ledger-protocol.md
"""
