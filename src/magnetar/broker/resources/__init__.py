"""Resources: clusters, tenants, namespaces and topics as nodes of the metadata store, in Pulsar's paths and JSON.

    paths.py          where everything is
    documents.py      JSON nodes: read through a cache, changed by compare-and-set
    clusters.py, tenants.py, namespaces.py, partitioned_topics.py, topics.py
    bundles.py        the ranges of hashes a namespace is divided into
    bootstrap.py      what a new cluster needs
    producer_names.py names for producers that bring none
    resources.py      Resources: all of these with one cache

Read next: docs/policies.md
"""
