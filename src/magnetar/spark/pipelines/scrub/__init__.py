"""Scrub: reads every replica of every entry from its bookie, and verifies it."""
