"""Settings of dispatch: how a broker hands entries of a topic to the consumers of its subscriptions."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class DispatchConfig:
    """Subscriptions, consumers and delayed delivery.

    Brokers may differ, and values may change on restart; what a policy of the namespace or topic says goes first.
    """

    # --- reading: one turn of a subscription reads this much and hands it out ---
    read_entries_max: int = knob(
        500,
        "Entries that a subscription reads at once.",
        at_least=1,
        at_most=100_000,
        pulsar="dispatcherMaxReadBatchSize",
    )
    read_bytes_max: int = knob(
        5 * 2**20,
        "Bytes that a subscription reads at once; one entry may be larger.",
        at_least=1,
        at_most=2**30,
        pulsar="dispatcherMaxReadSizeBytes",
    )
    # Small: with few messages and many consumers, each gets some.
    round_robin_messages_max: int = knob(
        20,
        "Messages that one consumer of a Shared subscription gets before it is the next one's turn.",
        at_least=1,
        at_most=100_000,
        pulsar="dispatcherMaxRoundRobinBatchSize",
    )
    read_retry_initial_ms: int = knob(
        1_000,
        "First wait after a failed read; doubles up to read_retry_max_ms.",
        at_least=1,
        at_most=3_600_000,
        pulsar="dispatcherReadFailureBackoffInitialTimeInMs",
    )
    read_retry_max_ms: int = knob(
        60_000,
        "Longest wait after failed reads.",
        at_least=1,
        at_most=3_600_000,
        pulsar="dispatcherReadFailureBackoffMaxTimeInMs",
    )
    read_timeout_ms: int = knob(
        60_000,
        "A read that takes longer counts as failed and is tried again.",
        at_least=1,
        at_most=3_600_000,
    )
    skip_unreadable: bool = knob(
        False,
        "Skip entries that are certainly lost instead of trying them for ever. They count as acknowledged.",
        pulsar="autoSkipNonRecoverableData",
    )

    # --- limits on what is delivered and not acknowledged ---
    unacked_messages_per_consumer_max: int = knob(
        50_000,
        "Messages a consumer of a Shared or Key_Shared subscription may have unacknowledged; 0: no limit.",
        at_least=0,
        at_most=2**31 - 1,
        pulsar="maxUnackedMessagesPerConsumer",
    )
    unacked_messages_per_subscription_max: int = knob(
        200_000,
        "Messages a Shared or Key_Shared subscription may have unacknowledged; 0: no limit.",
        at_least=0,
        at_most=2**31 - 1,
        pulsar="maxUnackedMessagesPerSubscription",
    )
    consumers_per_subscription_max: int = knob(
        0,
        "Consumers that one subscription accepts; 0: no limit.",
        at_least=0,
        at_most=1_000_000,
        pulsar="maxConsumersPerSubscription",
    )

    # --- Failover ---
    failover_delay_ms: int = knob(
        1_000,
        "Wait before a new active consumer of a Failover subscription gets messages, so that the old one's last "
        "acknowledgements arrive.",
        at_least=0,
        at_most=3_600_000,
        pulsar="activeConsumerFailoverDelayTimeMillis",
    )
    failover_consistent_hashing: bool = knob(
        False,
        "Choose the active consumer of a Failover subscription by a hash ring for partitioned topics as well.",
        pulsar="activeConsumerFailoverConsistentHashing",
    )

    # --- Key_Shared ---
    key_shared_consistent_hashing: bool = knob(
        True,
        "Assign key hashes by a ring of points; otherwise by splitting the largest range in two.",
        pulsar="subscriptionKeySharedUseConsistentHashing",
    )
    key_shared_points: int = knob(
        100,
        "Points that each consumer has on the ring of hashes.",
        at_least=1,
        at_most=10_000,
        pulsar="subscriptionKeySharedConsistentHashingReplicaPoints",
    )
    # Blocked entries are kept as positions only; this bounds them, and how far reading runs ahead of what is blocked.
    key_shared_look_ahead_per_consumer: int = knob(
        2_000,
        "Entries for which a blocked consumer makes the subscription read ahead, per consumer; 0: no limit.",
        at_least=0,
        at_most=1_000_000,
        pulsar="keySharedLookAheadMsgInReplayThresholdPerConsumer",
    )
    key_shared_look_ahead_per_subscription: int = knob(
        20_000,
        "The same, for all consumers of a subscription; 0: no limit.",
        at_least=0,
        at_most=10_000_000,
        pulsar="keySharedLookAheadMsgInReplayThresholdPerSubscription",
    )

    # --- delayed delivery ---
    delayed_delivery: bool = knob(
        True,
        "Hold messages that ask for a delivery time, on Shared and Key_Shared subscriptions.",
        pulsar="delayedDeliveryEnabled",
    )
    delayed_tick_ms: int = knob(
        1_000,
        "Precision of delivery times; timers fire no more often than this.",
        at_least=1,
        at_most=3_600_000,
        pulsar="delayedDeliveryTickTimeMillis",
    )
    delayed_strict: bool = knob(
        False,
        "Never deliver early; otherwise up to one tick early.",
        pulsar="isDelayedDeliveryDeliverAtTimeStrict",
    )
    # 24 bytes each. What does not fit is found again in the log when room is made.
    delayed_index_entries_max: int = knob(
        2_000_000,
        "Delayed entries that a subscription keeps in memory; later ones are found again by reading the topic.",
        at_least=1_000,
        at_most=1_000_000_000,
    )
    delayed_lookahead_entries: int = knob(
        50_000,
        "When this many entries in a row have rising delivery times, reading stops until the first is due.",
        at_least=0,
        at_most=1_000_000_000,
        pulsar="delayedDeliveryFixedDelayDetectionLookahead",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.read_retry_initial_ms > self.read_retry_max_ms:
            raise ConfigError(
                "DispatchConfig: read_retry_initial_ms exceeds read_retry_max_ms; lower the first or raise the other"
            )
