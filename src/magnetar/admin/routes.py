"""Every route there is, family by family."""

from __future__ import annotations

from magnetar.admin import (
    bookies,
    broker_stats,
    brokers,
    clusters,
    compaction,
    explain,
    lookup,
    messages,
    namespaces,
    observation,
    partitions,
    places,
    relay,
    schemas,
    segments,
    staging,
    subscriptions,
    tenants,
    topic_stats,
    topics,
)
from magnetar.admin.policies import namespace_routes, topic_routes
from magnetar.admin.route import Route

_FAMILIES = (
    observation,
    lookup,
    tenants,
    namespaces,
    namespace_routes,
    topics,
    partitions,
    topic_stats,
    topic_routes,
    subscriptions,
    messages,
    explain,
    places,
    segments,
    relay,
    compaction,
    staging,
    schemas,
    clusters,
    brokers,
    broker_stats,
    bookies,
)


def all_routes() -> list[Route]:
    return [route for family in _FAMILIES for route in family.ROUTES]
