"""Consumers and readers of the client: they send permits and acknowledgements, and receive entries."""
