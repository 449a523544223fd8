"""Resources: clusters, tenants, namespaces and topics as nodes of the metadata store, in Pulsar's paths and JSON.

* `paths.py` has the paths.
* `documents.py` has JSON nodes: read through a cache, changed by compare-and-set.
* `namespaces.py` has clusters, tenants and namespaces; `topics.py` has topics.
* `bundles.py` has the ranges of hashes that a namespace is divided into.
* `resources.py` has all of these with one cache, and makes what a new cluster needs.
* `producer_names.py` makes names for producers without one.

Read next: docs/policies.md
"""
