"""A ledger's metadata: created, changed by compare-and-set when bookies are replaced, and closed."""
