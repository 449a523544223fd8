"""Policies: what a topic's broker, namespace and the topic itself say about it, merged into one value.

    values.py      single policies: retention, quotas, rates
    effective.py   EffectivePolicies, and how the levels are merged
    namespace.py   what is asked of a namespace rather than of a topic: automatic topics, limits
    checks.py      what may be written: rules between policies
    events.py      topic policies as events of `__change_events`, in Avro
    service.py     PolicyService: cached state of the namespaces in use, and changes to topic policies

Read next: docs/policies.md
"""
