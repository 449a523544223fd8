"""Channels: how the ledger protocol reaches bookies, and which bookies there are."""
