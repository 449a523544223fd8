"""All routes of the admin interface, family by family."""

from __future__ import annotations

from magnetar.admin.cluster import bookies, broker_stats, brokers, clusters, lookup, namespaces, relay, tenants
from magnetar.admin.http import observation
from magnetar.admin.http.route import Route
from magnetar.admin.policies import namespace_routes, topic_routes
from magnetar.admin.topics import (
    compaction,
    explain,
    messages,
    partitions,
    positions,
    schemas,
    segments,
    staging,
    stats,
    subscriptions,
    topics,
)

_FAMILIES = (
    observation,
    lookup,
    tenants,
    namespaces,
    namespace_routes,
    topics,
    partitions,
    stats,
    topic_routes,
    subscriptions,
    messages,
    explain,
    positions,
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
