"""Default policies of topics: how long messages are kept, limits on clients and rates, and the checks of schemas.

A namespace may set its own values for its topics, and a topic for itself; these apply where neither does.
Read next: docs/policies.md
"""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

UNLIMITED = 0
NO_QUOTA = -1

SUBSCRIPTION_TYPES = ("Exclusive", "Shared", "Failover", "Key_Shared")
_COUNT_MAX = 2**31 - 1
_BYTES_MAX = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicDefaultsConfig:
    """Default policies of topics. A namespace or a single topic may override each of them with the admin API.

    All brokers of a cluster should have the same values, because topics move between brokers. Changes need a restart.
    """

    message_ttl_s: int = knob(
        UNLIMITED,
        "Seconds after which a message counts as acknowledged on every subscription. 0: never.",
        within=(0, _COUNT_MAX),
        pulsar="ttlDurationDefaultInSeconds",
    )
    retention_minutes: int = knob(
        0,
        "Minutes for which messages are kept after every subscription has acknowledged them. -1: forever.",
        within=(-1, _COUNT_MAX),
        pulsar="defaultRetentionTimeInMinutes",
    )
    retention_mb: int = knob(
        0,
        "Megabytes of messages that are kept after every subscription has acknowledged them. -1: all of them.",
        within=(-1, 2**43),
        pulsar="defaultRetentionSizeInMB",
    )
    backlog_quota_bytes: int = knob(
        NO_QUOTA,
        "Largest backlog of a subscription in bytes; `backlog_quota_policy` says what happens beyond it. -1: no limit.",
        within=(-1, _BYTES_MAX),
        pulsar="backlogQuotaDefaultLimitBytes",
    )
    backlog_quota_s: int = knob(
        NO_QUOTA,
        "Largest age in seconds of a subscription's oldest unacknowledged message; `backlog_quota_policy` says what "
        "happens beyond it. -1: no limit.",
        within=(-1, _COUNT_MAX),
        pulsar="backlogQuotaDefaultLimitSecond",
    )
    backlog_quota_policy: str = knob(
        "producer_request_hold",
        "What happens when a backlog exceeds its quota: producers wait, producers are refused, or the oldest messages "
        "are skipped.",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        pulsar="backlogQuotaDefaultRetentionPolicy",
    )
    compaction_threshold_bytes: int = knob(
        UNLIMITED,
        "Number of bytes that are not compacted yet at which a topic is compacted automatically. 0: compact only on "
        "request.",
        within=(0, _BYTES_MAX),
        pulsar="brokerServiceCompactionThresholdInBytes",
    )
    subscription_expiry_minutes: int = knob(
        UNLIMITED,
        "Minutes without consumers after which a subscription is deleted. 0: never.",
        within=(0, _COUNT_MAX),
        pulsar="subscriptionExpirationTimeMinutes",
    )

    producers_per_topic_max: int = knob(
        UNLIMITED,
        "Number of producers that one topic may have. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxProducersPerTopic",
    )
    consumers_per_topic_max: int = knob(
        UNLIMITED,
        "Number of consumers that one topic may have. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxConsumersPerTopic",
    )
    subscriptions_per_topic_max: int = knob(
        UNLIMITED,
        "Number of subscriptions that one topic may have. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxSubscriptionsPerTopic",
    )
    subscription_types: str = knob(
        ",".join(SUBSCRIPTION_TYPES),
        "Subscription types that are allowed, separated by commas.",
        pulsar="subscriptionTypesEnabled",
    )
    publish_messages_per_s: int = knob(
        UNLIMITED,
        "Messages per second that may be published to one topic. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="maxPublishRatePerTopicInMessages",
    )
    publish_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes per second that may be published to one topic. 0: no limit.",
        within=(0, _BYTES_MAX),
        pulsar="maxPublishRatePerTopicInBytes",
    )
    dispatch_messages_per_s: int = knob(
        UNLIMITED,
        "Messages per second that one topic delivers to its consumers. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="dispatchThrottlingRatePerTopicInMsg",
    )
    dispatch_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes per second that one topic delivers to its consumers. 0: no limit.",
        within=(0, _BYTES_MAX),
        pulsar="dispatchThrottlingRatePerTopicInByte",
    )
    subscription_dispatch_messages_per_s: int = knob(
        UNLIMITED,
        "Messages per second that one subscription delivers to its consumers. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="dispatchThrottlingRatePerSubscriptionInMsg",
    )
    subscription_dispatch_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes per second that one subscription delivers to its consumers. 0: no limit.",
        within=(0, _BYTES_MAX),
        pulsar="dispatchThrottlingRatePerSubscriptionInByte",
    )
    subscribes_per_consumer: int = knob(
        UNLIMITED,
        "Number of times that one consumer may subscribe within `subscribe_period_s`. 0: no limit.",
        within=(0, _COUNT_MAX),
        pulsar="subscribeThrottlingRatePerConsumer",
    )
    subscribe_period_s: int = knob(
        30,
        "Length in seconds of the period in which `subscribes_per_consumer` counts.",
        within=(1, 86_400),
        pulsar="subscribeRatePeriodPerConsumerInSecond",
    )
    delayed_delivery_max_ms: int = knob(
        UNLIMITED,
        "Longest delay in milliseconds that a message may ask for. 0: no limit.",
        within=(0, _BYTES_MAX),
        pulsar="delayedDeliveryMaxDelayInMillis",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        unknown = [name for name in self.allowed_subscription_types if name not in SUBSCRIPTION_TYPES]
        if unknown or not self.allowed_subscription_types:
            raise ConfigError(
                f"defaults.subscription_types is {self.subscription_types!r}: name one or more of "
                f"{', '.join(SUBSCRIPTION_TYPES)}, separated by commas"
            )

    @property
    def allowed_subscription_types(self) -> tuple[str, ...]:
        return listed_names(self.subscription_types)


def listed_names(text: str) -> tuple[str, ...]:
    """Returns the names of a list that is separated by commas."""
    return tuple(name.strip() for name in text.split(",") if name.strip())


STRATEGIES = (
    *("ALWAYS_INCOMPATIBLE", "ALWAYS_COMPATIBLE", "BACKWARD", "FORWARD", "FULL"),
    *("BACKWARD_TRANSITIVE", "FORWARD_TRANSITIVE", "FULL_TRANSITIVE"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SchemasConfig:
    """The schema registry, and the default schema policies of topics.

    All brokers of a cluster should have the same values, because topics move between brokers. Changes need a restart.
    """

    compatibility: str = knob(
        "FULL",
        "Compatibility check that a new schema must pass against the existing schemas of its topic.",
        choices=STRATEGIES,
        pulsar="schemaCompatibilityStrategy",
    )
    auto_update: bool = knob(
        True,
        "Allow producers and consumers to add a new schema to a topic. If false, only the admin API can.",
        pulsar="isAllowAutoUpdateSchemaEnabled",
    )
    validation_enforced: bool = knob(
        False, "Refuse producers without a schema on topics that have a schema.", pulsar="isSchemaValidationEnforced"
    )
    definition_bytes_max: int = knob(
        2**20, "Largest size in bytes of one schema definition.", within=(1_024, 4 * 2**20)
    )
    # Each is a ledger to read when a schema is checked against all of them.
    versions_max: int = knob(
        1_000,
        "Number of schema versions that one topic may have. At the limit, old versions must be deleted before a new "
        "one is accepted.",
        within=(1, 100_000),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
