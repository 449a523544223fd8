"""Publishing: the producers of a topic, deduplication, limits, and the answers."""
