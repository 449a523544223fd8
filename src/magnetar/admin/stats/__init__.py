"""Statistics of topics, subscriptions, consumers and producers in Pulsar's JSON, and the rates in them.

Absent:    docs/admin-rest.md lists what Pulsar's JSON has and ours has not, or always as nought, with the reason.
"""
