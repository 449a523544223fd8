"""Settings of a broker that are about topics rather than connections: its cluster, and topics that come by themselves.

Read next: defaults.py (what topics get that set nothing), schemas.py, pulsar.py (connections)
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

UNLIMITED = 0
_COUNT_MAX = 2**31 - 1
_PARTITIONS_MAX = 100_000


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerConfig:
    """A broker. All brokers of a cluster should agree in everything here: a topic moves between them."""

    # --- the cluster ---

    cluster: str = knob(
        "standalone", "Name of the cluster; part of the names that brokers give to producers.", pulsar="clusterName"
    )
    namespace_bundles: int = knob(
        4,
        "Into how many bundles a new namespace is divided.",
        at_least=1,
        at_most=4_096,
        pulsar="defaultNumberOfNamespaceBundles",
    )
    tenants_max: int = knob(
        UNLIMITED, "Tenants of the cluster. 0: no limit.", at_least=0, at_most=_COUNT_MAX, pulsar="maxTenants"
    )
    namespaces_per_tenant_max: int = knob(
        UNLIMITED,
        "Namespaces of one tenant. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxNamespacesPerTenant",
    )
    topics_per_namespace_max: int = knob(
        UNLIMITED,
        "Topics of one namespace, each partition counted. 0: no limit. A namespace may set its own.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxTopicsPerNamespace",
    )
    force_delete_tenant: bool = knob(
        False, "A tenant may be deleted with everything in it.", pulsar="forceDeleteTenantAllowed"
    )
    force_delete_namespace: bool = knob(
        False, "A namespace may be deleted with all its topics.", pulsar="forceDeleteNamespaceAllowed"
    )
    # A namespace, its local policies, its tenant and a topic's partitions are a node each: some thousand topics fit.
    metadata_cache_entries_max: int = knob(
        50_000,
        "Nodes of the metadata store that a broker remembers; each has a watch.",
        at_least=100,
        at_most=10_000_000,
    )

    # --- topics that come and go by themselves ---

    auto_create_topics: bool = knob(
        True, "A topic that a client asks for and that is not there is made.", pulsar="allowAutoTopicCreation"
    )
    auto_create_topics_type: str = knob(
        "non-partitioned",
        "What kind of topic that is.",
        choices=("non-partitioned", "partitioned"),
        pulsar="allowAutoTopicCreationType",
    )
    auto_create_partitions: int = knob(
        1,
        "Partitions of such a topic, if it is partitioned.",
        at_least=1,
        at_most=_PARTITIONS_MAX,
        pulsar="defaultNumPartitions",
    )
    partitions_max: int = knob(
        UNLIMITED,
        "Partitions that a topic may have. 0: no limit.",
        at_least=0,
        at_most=_PARTITIONS_MAX,
        pulsar="maxNumPartitionsPerPartitionedTopic",
    )
    auto_create_subscriptions: bool = knob(
        True,
        "A subscription that a consumer asks for and that is not there is made.",
        pulsar="allowAutoSubscriptionCreation",
    )
    inactive_topics_delete: bool = knob(
        True, "Topics that nobody uses are deleted.", pulsar="brokerDeleteInactiveTopicsEnabled"
    )
    inactive_topics_delete_mode: str = knob(
        "delete_when_no_subscriptions",
        "What a topic that nobody is connected to must be like besides: without a subscription, or without one that "
        "has something to read.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        pulsar="brokerDeleteInactiveTopicsMode",
    )
    inactive_topics_s: int = knob(
        60,
        "For how long nobody has used it then.",
        at_least=1,
        at_most=_COUNT_MAX,
        pulsar="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
    )

    # --- deduplication ---

    deduplication: bool = knob(
        False, "Messages that a producer sends again are stored once.", pulsar="brokerDeduplicationEnabled"
    )
    deduplication_snapshot_s: int = knob(
        120,
        "How often what is known of a topic's producers is written down, if there was a message meanwhile.",
        at_least=1,
        at_most=86_400,
        pulsar="brokerDeduplicationSnapshotIntervalSeconds",
    )
    deduplication_snapshot_entries: int = knob(
        1_000,
        "After so many entries it is written down too: as many are read again when a topic is loaded.",
        at_least=1,
        at_most=10_000_000,
        pulsar="brokerDeduplicationEntriesInterval",
    )
    deduplication_producers_max: int = knob(
        10_000,
        "Producers that are remembered for each topic.",
        at_least=1,
        at_most=10_000_000,
        pulsar="brokerDeduplicationMaxNumberOfProducers",
    )
    deduplication_producer_idle_minutes: int = knob(
        360,
        "A producer that was not connected for so long is forgotten.",
        at_least=1,
        at_most=_COUNT_MAX,
        pulsar="brokerDeduplicationProducerInactivityTimeoutMinutes",
    )

    # --- policies of single topics ---

    topic_policies: bool = knob(
        True,
        "Topics may have policies of their own, in their namespace's topic `__change_events`.",
        pulsar="topicLevelPoliciesEnabled",
    )
    topic_policies_timeout_s: int = knob(
        60,
        "How long reading or changing them may take; a topic is not loaded without them.",
        at_least=1,
        at_most=3_600,
        pulsar="topicPoliciesCacheInitTimeoutSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.cluster:
            raise ConfigError("broker.cluster is empty: give the cluster a name")
