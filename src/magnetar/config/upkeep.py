"""Settings of a broker's loaded topics: how they are loaded, and how often each is looked after."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob

_DAY_S = 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class UpkeepConfig:
    """Brokers may differ, and values may change on restart."""

    topic_load_timeout_ms: int = knob(
        60_000,
        "How long loading a topic may take; a client that waits for it is told to try again.",
        at_least=1,
        at_most=3_600_000,
        pulsar="topicLoadTimeoutSeconds",
    )
    # Each load is a handful of metadata writes and a new ledger; more at once only wait for one another.
    topic_loads_max: int = knob(
        500,
        "Topics that are loaded at the same time; others wait for their turn.",
        at_least=1,
        at_most=100_000,
        pulsar="maxConcurrentTopicLoadRequest",
    )
    close_timeout_ms: int = knob(
        30_000, "How long a topic may take to be closed when it is unloaded.", at_least=1, at_most=3_600_000
    )
    retention_check_s: int = knob(
        120,
        "How often ledgers that nobody needs any more are looked for.",
        at_least=1,
        at_most=_DAY_S,
        pulsar="retentionCheckIntervalInSeconds",
    )
    compaction_check_s: int = knob(
        60,
        "How often topics that have to be compacted are looked for.",
        at_least=1,
        at_most=_DAY_S,
        pulsar="brokerServiceCompactionMonitorIntervalInSeconds",
    )
    expiry_check_s: int = knob(
        300,
        "How often messages beyond their time to live are looked for.",
        at_least=1,
        at_most=_DAY_S,
        pulsar="messageExpiryCheckIntervalInMinutes",
    )
    backlog_quota_check_s: int = knob(
        60,
        "How often backlogs are compared with their quota.",
        at_least=1,
        at_most=_DAY_S,
        pulsar="backlogQuotaCheckIntervalInSeconds",
    )
    inactive_check_s: int = knob(
        60,
        "How often topics that nobody uses are looked for.",
        at_least=1,
        at_most=_DAY_S,
        pulsar="brokerDeleteInactiveTopicsFrequencySeconds",
    )
    staging_sweep_s: int = knob(
        600,
        "How often staged epochs that were left behind are published, and staged ledgers that nobody wants deleted.",
        at_least=1,
        at_most=_DAY_S,
    )
    # Longer than any task runs: what is older was given up by everybody.
    staging_ttl_minutes: int = knob(
        1_440,
        "How old a staged ledger is when it is deleted although its epoch is not done.",
        at_least=1,
        at_most=525_600,
    )

    def __post_init__(self) -> None:
        check_knobs(self)
