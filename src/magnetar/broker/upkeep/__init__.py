"""Upkeep: what a broker does for its loaded topics at intervals, and why a message is retained."""
