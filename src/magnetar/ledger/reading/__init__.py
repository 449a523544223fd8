"""Reading a ledger: entries from any bookie that has them, the LAC, and the end of an open ledger."""
