"""Schemas of topics: the registry, and which of them fit together.

Read next: registry.py (what producers, consumers and administrators ask for), storage.py (versions in Pulsar's
           layout), compatibility.py, validation.py, avro/, docs/schemas.md
"""
