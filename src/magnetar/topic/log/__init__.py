"""A topic's log: a chain of ledgers with one writer, its node, its index, and the tail in memory."""
