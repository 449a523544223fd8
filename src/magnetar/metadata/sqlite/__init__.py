"""The embedded store: the tree in one SQLite file, for one process, durable against kill -9 and power loss."""
