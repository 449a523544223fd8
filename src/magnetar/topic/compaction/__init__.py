"""Compaction: for every key of a topic only its last message is kept, in a ledger beside the topic."""
