"""Settings of a broker that are about topics rather than connections: its cluster, and automatic creation and deletion.

Read next: defaults.py (defaults for topics and schemas), pulsar.py (connections)
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
    """A broker, and the topics that it serves.

    All brokers of a cluster should have the same values, because topics move between brokers. Changes need a restart.
    """

    # --- the cluster ---

    cluster: str = knob(
        "standalone",
        "Name of the cluster. It is part of the producer names that brokers generate.",
        pulsar="clusterName",
    )
    namespace_bundles: int = knob(
        4,
        "Number of bundles that a new namespace is divided into.",
        within=(1, 4_096),
        pulsar="defaultNumberOfNamespaceBundles",
    )
    tenants_max: int = knob(
        UNLIMITED,
        "Number of tenants that the cluster may have. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxTenants",
    )
    namespaces_per_tenant_max: int = knob(
        UNLIMITED,
        "Number of namespaces that one tenant may have. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxNamespacesPerTenant",
    )
    topics_per_namespace_max: int = knob(
        UNLIMITED,
        "Number of topics that one namespace may have; each partition counts as a topic. 0: no limit. A namespace may "
        "set its own value.",
        within=(0, _COUNT_MAX),
        pulsar="maxTopicsPerNamespace",
    )
    force_delete_tenant: bool = knob(
        False,
        "Allow the forced deletion of a tenant, which deletes everything in it.",
        pulsar="forceDeleteTenantAllowed",
    )
    force_delete_namespace: bool = knob(
        False,
        "Allow the forced deletion of a namespace, which deletes all its topics.",
        pulsar="forceDeleteNamespaceAllowed",
    )
    # A namespace, its local policies, its tenant and a topic's partitions are a node each: some thousand topics fit.
    metadata_cache_entries_max: int = knob(
        50_000,
        "Number of metadata nodes that a broker caches. Each one has a watch in the metadata store.",
        within=(100, 10_000_000),
    )

    session_expired_policy: str = knob(
        "reconnect",
        "What a broker of a cluster does when its session with the metadata store has expired. `reconnect`: it gets a "
        "new session, and owns again what no other broker has taken. `shutdown`: it stops.",
        choices=("reconnect", "shutdown"),
        pulsar="zookeeperSessionExpiredPolicy",
    )

    # --- automatic creation and deletion of topics ---

    auto_create_topics: bool = knob(
        True, "Create a topic when a client asks for one that does not exist.", pulsar="allowAutoTopicCreation"
    )
    auto_create_topics_type: str = knob(
        "non-partitioned",
        "Type of the topics that are created automatically.",
        choices=("non-partitioned", "partitioned"),
        pulsar="allowAutoTopicCreationType",
    )
    auto_create_partitions: int = knob(
        1,
        "Number of partitions of topics that are created automatically as partitioned topics.",
        within=(1, _PARTITIONS_MAX),
        pulsar="defaultNumPartitions",
    )
    partitions_max: int = knob(
        10_000,
        "Number of partitions that one topic may have. 0: no limit.",
        within=(0, _PARTITIONS_MAX),
        pulsar="maxNumPartitionsPerPartitionedTopic",
    )
    auto_create_subscriptions: bool = knob(
        True,
        "Create a subscription when a consumer asks for one that does not exist.",
        pulsar="allowAutoSubscriptionCreation",
    )
    inactive_topics_delete: bool = knob(
        True,
        "Delete unused topics. `magnetar standalone` deletes them only if this key is set explicitly.",
        pulsar="brokerDeleteInactiveTopicsEnabled",
    )
    inactive_topics_delete_mode: str = knob(
        "delete_when_no_subscriptions",
        "Which unused topics are deleted: those without subscriptions, or those whose subscriptions have all caught "
        "up.",
        choices=("delete_when_no_subscriptions", "delete_when_subscriptions_caught_up"),
        pulsar="brokerDeleteInactiveTopicsMode",
    )
    inactive_topics_s: int = knob(
        60,
        "Seconds a topic must be unused before it is deleted.",
        within=(1, _COUNT_MAX),
        pulsar="brokerDeleteInactiveTopicsMaxInactiveDurationSeconds",
    )

    # --- deduplication ---

    deduplication: bool = knob(
        False, "Store a message only once when its producer sends it again.", pulsar="brokerDeduplicationEnabled"
    )
    deduplication_snapshot_s: int = knob(
        120,
        "Seconds between two snapshots of a topic's producers, which deduplication needs after a restart. A topic "
        "without new messages is skipped.",
        within=(1, 86_400),
        pulsar="brokerDeduplicationSnapshotIntervalSeconds",
    )
    deduplication_snapshot_entries: int = knob(
        1_000,
        "Number of new entries after which a snapshot is taken early. At most this many entries are read again when a "
        "topic is loaded.",
        within=(1, 10_000_000),
        pulsar="brokerDeduplicationEntriesInterval",
    )
    deduplication_producers_max: int = knob(
        10_000,
        "Number of producers that deduplication remembers for each topic.",
        within=(1, 10_000_000),
        pulsar="brokerDeduplicationMaxNumberOfProducers",
    )
    deduplication_producer_idle_minutes: int = knob(
        360,
        "Minutes after which deduplication forgets a producer that is not connected.",
        within=(1, _COUNT_MAX),
        pulsar="brokerDeduplicationProducerInactivityTimeoutMinutes",
    )

    # --- policies of single topics ---

    topic_policies: bool = knob(
        True,
        "Allow policies for single topics. They are stored in the topic `__change_events` of the namespace.",
        pulsar="topicLevelPoliciesEnabled",
    )
    topic_policies_timeout_s: int = knob(
        60,
        "Seconds that reading or changing topic policies may take. A topic whose policies cannot be read is not "
        "loaded.",
        within=(1, 3_600),
        pulsar="topicPoliciesCacheInitTimeoutSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.cluster:
            raise ConfigError("broker.cluster is empty: give the cluster a name")
