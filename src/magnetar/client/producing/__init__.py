"""Producers of the client: they make entries of messages, send them, and receive the receipts."""
