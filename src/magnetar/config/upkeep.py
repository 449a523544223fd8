"""Settings of a broker's periodic work: loading and closing topics, retention, expiry, quotas and sweeps."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepConfig:
    """Loading and closing of topics, and the periodic work of a broker.

    Values may differ between brokers. Changes need a restart.
    """

    topic_load_timeout_ms: int = knob(
        60_000,
        "Milliseconds that loading a topic may take. After that, waiting clients get an error and try again.",
        within=(1, 3_600_000),
        pulsar="topicLoadTimeoutSeconds",
    )
    # Each load is a handful of metadata writes and a new ledger; more loads at once only wait for one another.
    topic_loads_max: int = knob(
        500,
        "Number of topics that are loaded at the same time. Further ones wait.",
        within=(1, 100_000),
        pulsar="maxConcurrentTopicLoadRequest",
    )
    close_timeout_ms: int = knob(
        30_000,
        "Milliseconds that closing a topic may take when it is unloaded. After that, unfinished work is abandoned.",
        within=(1, 3_600_000),
    )
    retention_check_s: int = knob(
        120,
        "Seconds between two searches for ledgers that can be deleted.",
        within=(1, _DAY_S),
        pulsar="retentionCheckIntervalInSeconds",
    )
    compaction_check_s: int = knob(
        60,
        "Seconds between two searches for topics that need compaction.",
        within=(1, _DAY_S),
        pulsar="brokerServiceCompactionMonitorIntervalInSeconds",
    )
    expiry_check_s: int = knob(
        300,
        "Seconds between two searches for expired messages.",
        within=(1, _DAY_S),
        pulsar="messageExpiryCheckIntervalInMinutes",
    )
    backlog_quota_check_s: int = knob(
        60,
        "Seconds between two checks of backlogs against their quotas.",
        within=(1, _DAY_S),
        pulsar="backlogQuotaCheckIntervalInSeconds",
    )
    inactive_check_s: int = knob(
        60,
        "Seconds between two searches for unused topics.",
        within=(1, _DAY_S),
        pulsar="brokerDeleteInactiveTopicsFrequencySeconds",
    )
    staging_sweep_s: int = knob(
        600,
        "Seconds between two sweeps of the data that Spark jobs have staged. A sweep publishes what a job has "
        "committed but not published, and deletes staged ledgers that are no longer needed.",
        within=(1, _DAY_S),
    )
    # Longer than any task runs: an older ledger was abandoned.
    staging_ttl_minutes: int = knob(
        1_440,
        "Age in minutes at which a staged ledger is deleted even though its Spark job has not committed it.",
        within=(1, 525_600),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
