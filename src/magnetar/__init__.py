"""magnetar: a message streaming platform in Python."""
