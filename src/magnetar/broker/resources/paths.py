"""The paths of Pulsar's resources in the metadata store."""

from __future__ import annotations

from magnetar.names import Domain, NamespaceName, TopicName

CLUSTERS = "/admin/clusters"
POLICIES = "/admin/policies"
"""The parent of tenants, and below each its namespaces."""
LOCAL_POLICIES = "/admin/local-policies"
PARTITIONED_TOPICS = "/admin/partitioned-topics"
MANAGED_LEDGERS = "/managed-ledgers"
OWNERSHIP = "/namespace"
BOOKIES = "/bookies"
PRODUCER_NAMES = "/counters/producer-name"


def cluster(name: str) -> str:
    return f"{CLUSTERS}/{name}"


def isolation_policies(cluster_name: str) -> str:
    return f"{cluster(cluster_name)}/namespaceIsolationPolicies"


def failure_domains(cluster_name: str) -> str:
    return f"{cluster(cluster_name)}/failureDomain"


def failure_domain(cluster_name: str, name: str) -> str:
    return f"{failure_domains(cluster_name)}/{name}"


def tenant(name: str) -> str:
    return f"{POLICIES}/{name}"


def namespace(name: NamespaceName) -> str:
    return f"{POLICIES}/{name}"


def local_policies(name: NamespaceName) -> str:
    return f"{LOCAL_POLICIES}/{name}"


def partitioned_topic(name: TopicName) -> str:
    return f"{PARTITIONED_TOPICS}/{name.namespace}/{name.domain}/{name.encoded}"


def partitioned_topics(name: NamespaceName, domain: Domain) -> str:
    return f"{PARTITIONED_TOPICS}/{name}/{domain}"


def logs(name: NamespaceName) -> str:
    """The parent of the logs of a namespace's persistent topics."""
    return f"{MANAGED_LEDGERS}/{name}/{Domain.PERSISTENT}"
