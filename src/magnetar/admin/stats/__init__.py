"""Statistics of topics, subscriptions, consumers and producers in Pulsar's JSON, and the rates in them.

docs/admin-rest.md lists the fields of Pulsar's JSON that are missing here, or always zero, with the reasons.
"""
