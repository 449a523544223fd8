"""Writing a ledger: entries in flight, the ensemble they go to, and what happens when a bookie fails."""
