"""The broker: names, resources and policies, topics, subscriptions, dispatch, and the front ends that speak to clients.

Read next: resources/, policies/; docs/policies.md
"""
