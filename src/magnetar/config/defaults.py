"""What a topic gets by default: how long messages stay, who may connect, how fast.

A namespace may set its own value for its topics, and a topic for itself; these are for those that set nothing.
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
    """All brokers of a cluster should agree in everything here: a topic moves between them."""

    # --- how long messages stay ---

    message_ttl_s: int = knob(
        UNLIMITED,
        "A message older than this counts as acknowledged on every subscription. 0: never.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="ttlDurationDefaultInSeconds",
    )
    retention_minutes: int = knob(
        0,
        "For how long messages are kept that every subscription has acknowledged. -1: for ever.",
        at_least=-1,
        at_most=_COUNT_MAX,
        pulsar="defaultRetentionTimeInMinutes",
    )
    retention_mb: int = knob(
        0,
        "How many megabytes of such messages are kept. -1: all.",
        at_least=-1,
        at_most=2**43,
        pulsar="defaultRetentionSizeInMB",
    )
    backlog_quota_bytes: int = knob(
        NO_QUOTA,
        "Bytes that a subscription may be behind. -1: no limit.",
        at_least=-1,
        at_most=_BYTES_MAX,
        pulsar="backlogQuotaDefaultLimitBytes",
    )
    backlog_quota_s: int = knob(
        NO_QUOTA,
        "Age of the oldest message that a subscription has not acknowledged. -1: no limit.",
        at_least=-1,
        at_most=_COUNT_MAX,
        pulsar="backlogQuotaDefaultLimitSecond",
    )
    backlog_quota_policy: str = knob(
        "producer_request_hold",
        "What happens beyond that: producers wait, producers are refused, or the oldest messages are skipped.",
        choices=("producer_request_hold", "producer_exception", "consumer_backlog_eviction"),
        pulsar="backlogQuotaDefaultRetentionPolicy",
    )
    compaction_threshold_bytes: int = knob(
        UNLIMITED,
        "A topic with so many bytes that were not compacted yet is compacted. 0: only on demand.",
        at_least=0,
        at_most=_BYTES_MAX,
        pulsar="brokerServiceCompactionThresholdInBytes",
    )
    subscription_expiry_minutes: int = knob(
        UNLIMITED,
        "A subscription without consumers for so long is deleted. 0: never.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="subscriptionExpirationTimeMinutes",
    )

    # --- who may connect, and how fast ---

    producers_per_topic_max: int = knob(
        UNLIMITED,
        "Producers of one topic. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxProducersPerTopic",
    )
    consumers_per_topic_max: int = knob(
        UNLIMITED,
        "Consumers of one topic. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxConsumersPerTopic",
    )
    subscriptions_per_topic_max: int = knob(
        UNLIMITED,
        "Subscriptions of one topic. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxSubscriptionsPerTopic",
    )
    subscription_types: str = knob(
        ",".join(SUBSCRIPTION_TYPES),
        "Kinds of subscriptions that are allowed, joined by commas.",
        pulsar="subscriptionTypesEnabled",
    )
    publish_messages_per_s: int = knob(
        UNLIMITED,
        "Messages that may be published to one topic in a second. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="maxPublishRatePerTopicInMessages",
    )
    publish_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes that may be published to one topic in a second. 0: no limit.",
        at_least=0,
        at_most=_BYTES_MAX,
        pulsar="maxPublishRatePerTopicInBytes",
    )
    dispatch_messages_per_s: int = knob(
        UNLIMITED,
        "Messages that are delivered from one topic in a second. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="dispatchThrottlingRatePerTopicInMsg",
    )
    dispatch_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes that are delivered from one topic in a second. 0: no limit.",
        at_least=0,
        at_most=_BYTES_MAX,
        pulsar="dispatchThrottlingRatePerTopicInByte",
    )
    subscription_dispatch_messages_per_s: int = knob(
        UNLIMITED,
        "Messages that are delivered to one subscription in a second. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="dispatchThrottlingRatePerSubscriptionInMsg",
    )
    subscription_dispatch_bytes_per_s: int = knob(
        UNLIMITED,
        "Bytes that are delivered to one subscription in a second. 0: no limit.",
        at_least=0,
        at_most=_BYTES_MAX,
        pulsar="dispatchThrottlingRatePerSubscriptionInByte",
    )
    subscribes_per_consumer: int = knob(
        UNLIMITED,
        "How often one consumer may subscribe within `subscribe_period_s`. 0: no limit.",
        at_least=0,
        at_most=_COUNT_MAX,
        pulsar="subscribeThrottlingRatePerConsumer",
    )
    subscribe_period_s: int = knob(
        30,
        "The time that `subscribes_per_consumer` is about.",
        at_least=1,
        at_most=86_400,
        pulsar="subscribeRatePeriodPerConsumerInSecond",
    )
    delayed_delivery_max_ms: int = knob(
        UNLIMITED,
        "A message may ask to be delivered so much later. 0: no limit.",
        at_least=0,
        at_most=_BYTES_MAX,
        pulsar="delayedDeliveryMaxDelayInMillis",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        unknown = [name for name in self.allowed_subscription_types if name not in SUBSCRIPTION_TYPES]
        if unknown or not self.allowed_subscription_types:
            raise ConfigError(
                f"defaults.subscription_types is {self.subscription_types!r}: name one or more of "
                f"{', '.join(SUBSCRIPTION_TYPES)}, joined by commas"
            )

    @property
    def allowed_subscription_types(self) -> tuple[str, ...]:
        return tuple(name.strip() for name in self.subscription_types.split(",") if name.strip())
