"""Recovery: a ledger is taken from its writer, its end is found, and it is closed there."""
