"""Policies: what a topic's broker, namespace and the topic itself say about it, merged into one value.

    registry.py    every policy, one row each: EffectivePolicies, NamespacePolicies
    rows.py        what a row says, and what follows from it: levels, merging, places in documents
    kinds.py       types of policies: stored, set or not, accepted, shown
    values.py      the values: retention, quotas, rates; reading fields of a document; checks of what may be written
    events.py      topic policies as events of `__change_events`, in Avro
    follower.py    the known policies of one namespace and its topics, and what keeps them up to date
    service.py     PolicyService: the namespaces in use, and changes to topic policies

Read next: docs/policies.md
"""
