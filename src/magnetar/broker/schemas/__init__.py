"""Schemas of topics: the registry, and which of them fit together.

    registry.py         SchemaRegistry: what producers, consumers and administrators ask for
    storage.py          versions in Pulsar's layout: a node for each topic, a ledger for each version
    data.py             SchemaData, SchemaType, versions and their numbers
    validation.py       what a schema's definition must look like
    compatibility.py    whether a new one fits those before it; strategy.py says which and how
    avro/               Avro's schemas, resolution and binary form

Read next: docs/schemas.md
"""
