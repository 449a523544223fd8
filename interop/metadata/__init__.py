"""BookKeeper's metadata: what we write Apache's classes read, and the other way round, field by field."""
