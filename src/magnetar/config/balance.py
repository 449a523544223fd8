"""Settings of the load manager: how brokers report their load, and when the leader moves and splits bundles."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

_COUNT_MAX = 2**31 - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class BalanceConfig:
    """The load of a cluster's brokers, and how the leader balances it.

    All brokers of a cluster should have the same values, because any of them may lead. Changes need a restart.
    """

    # --- reports ---

    report_interval_s: int = knob(
        5,
        "Seconds between two measurements of a broker's load. The leader adds each one to its averages.",
        within=(1, 3_600),
        pulsar="loadBalancerReportUpdateMinIntervalMillis",
    )
    report_change_percent: int = knob(
        10,
        "Change of a broker's load, in percent, after which it reports at once.",
        within=(1, 1_000),
        pulsar="loadBalancerReportUpdateThresholdPercentage",
    )
    report_max_interval_minutes: int = knob(
        15,
        "Minutes after which a broker reports even if its load has hardly changed. While a broker's last report is "
        "older than twice this time, the leader moves no bundles to it or away from it.",
        within=(1, 1_440),
        pulsar="loadBalancerReportUpdateMaxIntervalMinutes",
    )
    bundle_data_interval_minutes: int = knob(
        15,
        "Minutes after which the leader stores its averages of bundles, for the next leader.",
        within=(1, 1_440),
        pulsar="loadBalancerResourceQuotaUpdateIntervalMinutes",
    )

    # --- moving bundles ---

    shedding: bool = knob(
        True, "Move bundles from brokers with a high load to others.", pulsar="loadBalancerSheddingEnabled"
    )
    round_interval_s: int = knob(
        60,
        "Seconds between two rounds of the leader. A round moves at most one bundle from each broker.",
        within=(1, 86_400),
        pulsar="loadBalancerSheddingIntervalMinutes",
    )
    # Two limits, so that a broker near one of them does not start and stop all the time.
    excess_begin_percent: int = knob(
        25,
        "Percentage by which a broker's load must exceed the average of all brokers before bundles are moved away "
        "from it.",
        within=(1, 1_000),
        pulsar="loadBalancerBrokerThresholdShedderPercentage",
    )
    excess_end_percent: int = knob(
        10,
        "Percentage above the average of all brokers below which no more bundles are moved away from a broker.",
        within=(0, 1_000),
    )
    difference_min: int = knob(
        1_000,
        "Smallest difference between a broker's load and the average for which bundles are moved. A message per "
        "second counts 1, and so does a KiB per second.",
        within=(0, _COUNT_MAX),
    )
    rest_minutes: int = knob(
        30,
        "Minutes for which a bundle is not moved again after a move.",
        within=(0, 1_440),
        pulsar="loadBalancerSheddingGracePeriodMinutes",
    )

    # --- splitting bundles ---

    splitting: bool = knob(
        True,
        "Split bundles that exceed one of the four `bundle_..._max` limits.",
        pulsar="loadBalancerAutoBundleSplitEnabled",
    )
    merging: bool = knob(
        True,
        "Merge neighbouring bundles of one broker that have little load, until a namespace has as many bundles as it "
        "was created with. Brokers of Apache cannot do that: while one is alive, no bundles are merged.",
    )
    bundle_topics_max: int = knob(
        1_000,
        "Number of topics beyond which a bundle is split.",
        within=(1, _COUNT_MAX),
        pulsar="loadBalancerNamespaceBundleMaxTopics",
    )
    bundle_sessions_max: int = knob(
        1_000,
        "Number of producers and consumers beyond which a bundle is split.",
        within=(1, _COUNT_MAX),
        pulsar="loadBalancerNamespaceBundleMaxSessions",
    )
    bundle_messages_per_s_max: int = knob(
        30_000,
        "Number of messages per second, in and out together, beyond which a bundle is split.",
        within=(1, _COUNT_MAX),
        pulsar="loadBalancerNamespaceBundleMaxMsgRate",
    )
    bundle_mb_per_s_max: int = knob(
        100,
        "Megabytes per second, in and out together, beyond which a bundle is split.",
        within=(1, _COUNT_MAX),
        pulsar="loadBalancerNamespaceBundleMaxBandwidthMbytes",
    )
    namespace_bundles_max: int = knob(
        128,
        "Number of bundles at which the bundles of a namespace are not split any more.",
        within=(1, 100_000),
        pulsar="loadBalancerNamespaceMaximumBundles",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.excess_end_percent > self.excess_begin_percent:
            raise ConfigError(
                f"balance.excess_end_percent is {self.excess_end_percent}, more than "
                f"balance.excess_begin_percent, {self.excess_begin_percent}: make it smaller"
            )
