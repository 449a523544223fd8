"""Policies: what a topic's broker, namespace and the topic itself say about it, merged into one value.

    registry.py    every policy, one row each: EffectivePolicies, NamespacePolicies
    rows.py        what a row says, and what follows from it: levels, merging, places in documents
    kinds.py       types of policies: stored, set or not, accepted, shown
    values.py      the values: retention, quotas, rates; checks of what may be written
    values.py      reading single fields of a document
    events.py      topic policies as events of `__change_events`, in Avro
    service.py     PolicyService: cached state of the namespaces in use, and changes to topic policies

Read next: docs/policies.md
"""
