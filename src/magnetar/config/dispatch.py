"""Settings of dispatch: how a broker hands entries of a topic to the consumers of its subscriptions."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """Delivery to consumers: reading, limits on unacknowledged messages, subscription types and delayed delivery.

    Values may differ between brokers. Changes need a restart. Policies of a namespace or topic override these values.
    """

    # --- reading: one turn of a subscription reads this much and delivers it ---
    read_entries_max: int = knob(
        500,
        "Number of entries that a subscription reads at once.",
        within=(1, 100_000),
        pulsar="dispatcherMaxReadBatchSize",
    )
    read_bytes_max: int = knob(
        5 * 2**20,
        "Number of bytes that a subscription reads at once. A single entry may be larger.",
        within=(1, 2**30),
        pulsar="dispatcherMaxReadSizeBytes",
    )
    # Small: with few messages and many consumers, each gets some.
    round_robin_messages_max: int = knob(
        20,
        "Number of messages that one consumer of a Shared subscription gets before the next consumer's turn.",
        within=(1, 100_000),
        pulsar="dispatcherMaxRoundRobinBatchSize",
    )
    read_retry_initial_ms: int = knob(
        1_000,
        "Milliseconds to wait after a failed read. Each further failure doubles the wait, up to `read_retry_max_ms`.",
        within=(1, 3_600_000),
        pulsar="dispatcherReadFailureBackoffInitialTimeInMs",
    )
    read_retry_max_ms: int = knob(
        60_000,
        "Longest wait in milliseconds between two attempts to read.",
        within=(1, 3_600_000),
        pulsar="dispatcherReadFailureBackoffMaxTimeInMs",
    )
    read_timeout_ms: int = knob(
        60_000,
        "Milliseconds that one read may take. After that, it counts as failed and is tried again.",
        within=(1, 3_600_000),
    )
    skip_unreadable: bool = knob(
        False,
        "Skip entries that are certainly lost, and count them as acknowledged. If false, the subscription tries to "
        "read them forever.",
        pulsar="autoSkipNonRecoverableData",
    )

    # --- limits on what is delivered and not acknowledged ---
    unacked_messages_per_consumer_max: int = knob(
        50_000,
        "Largest number of unacknowledged messages that a consumer of a Shared or Key_Shared subscription may have. "
        "0: no limit.",
        within=(0, 2**31 - 1),
        pulsar="maxUnackedMessagesPerConsumer",
    )
    unacked_messages_per_subscription_max: int = knob(
        200_000,
        "Largest number of unacknowledged messages that a Shared or Key_Shared subscription may have. 0: no limit.",
        within=(0, 2**31 - 1),
        pulsar="maxUnackedMessagesPerSubscription",
    )
    consumers_per_subscription_max: int = knob(
        0,
        "Number of consumers that one subscription may have. 0: no limit.",
        within=(0, 1_000_000),
        pulsar="maxConsumersPerSubscription",
    )

    # --- Failover ---
    failover_delay_ms: int = knob(
        1_000,
        "Milliseconds to wait before a new active consumer of a Failover subscription gets messages. The last "
        "acknowledgements of the previous consumer can arrive during this time.",
        within=(0, 3_600_000),
        pulsar="activeConsumerFailoverDelayTimeMillis",
    )
    failover_consistent_hashing: bool = knob(
        False,
        "Choose the active consumer of a Failover subscription with a hash ring for partitioned topics too.",
        pulsar="activeConsumerFailoverConsistentHashing",
    )

    # --- Key_Shared ---
    key_shared_consistent_hashing: bool = knob(
        True,
        "Assign the keys of a Key_Shared subscription to consumers with a hash ring. If false, a new consumer gets "
        "half of the largest hash range.",
        pulsar="subscriptionKeySharedUseConsistentHashing",
    )
    key_shared_points: int = knob(
        100,
        "Number of points that each consumer of a Key_Shared subscription has on the hash ring.",
        within=(1, 10_000),
        pulsar="subscriptionKeySharedConsistentHashingReplicaPoints",
    )
    # Blocked entries are kept as positions only; this bounds them, and how far reading runs ahead of blocked entries.
    key_shared_look_ahead_per_consumer: int = knob(
        2_000,
        "Number of entries, for each consumer, that a Key_Shared subscription may hold back for blocked keys while it "
        "continues to read. 0: no limit.",
        within=(0, 1_000_000),
        pulsar="keySharedLookAheadMsgInReplayThresholdPerConsumer",
    )
    key_shared_look_ahead_per_subscription: int = knob(
        20_000,
        "Number of entries that a Key_Shared subscription may hold back for blocked keys while it continues to read. "
        "0: no limit.",
        within=(0, 10_000_000),
        pulsar="keySharedLookAheadMsgInReplayThresholdPerSubscription",
    )

    # --- delayed delivery ---
    delayed_delivery: bool = knob(
        True,
        "Hold back messages that ask for a later delivery time, on Shared and Key_Shared subscriptions.",
        pulsar="delayedDeliveryEnabled",
    )
    delayed_tick_ms: int = knob(
        1_000,
        "Precision of delayed delivery in milliseconds. Its timers fire no more often than this.",
        within=(1, 3_600_000),
        pulsar="delayedDeliveryTickTimeMillis",
    )
    delayed_strict: bool = knob(
        False,
        "Never deliver a delayed message early. If false, it may arrive up to `delayed_tick_ms` early.",
        pulsar="isDelayedDeliveryDeliverAtTimeStrict",
    )
    # 24 bytes each. Entries without room are found again in the log later.
    delayed_index_entries_max: int = knob(
        2_000_000,
        "Number of delayed entries that a subscription keeps in memory. Further ones are found later by reading the "
        "topic again.",
        within=(1_000, 1_000_000_000),
    )
    delayed_lookahead_entries: int = knob(
        50_000,
        "Number of delayed entries with increasing delivery times after which a subscription stops reading until the "
        "first one is due. 0: it never stops.",
        within=(0, 1_000_000_000),
        pulsar="delayedDeliveryFixedDelayDetectionLookahead",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.read_retry_initial_ms > self.read_retry_max_ms:
            raise ConfigError(
                "dispatch.read_retry_initial_ms exceeds dispatch.read_retry_max_ms: lower the first or raise the second"
            )
