"""Audit: compares the sent and acknowledged messages with the stored and received ones."""
