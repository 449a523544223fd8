"""Commands that work on ledgers of a cluster of bookies."""
