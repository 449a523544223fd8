"""Settings of topics: how their logs are cut into ledgers, replicated and cached."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

_MINUTES_MAX = 366 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """Per broker: brokers of a cluster should agree, since each may own any topic. Policies of a namespace may override
    the quorums. Changes need a restart, and hold for new ledgers only.
    """

    # --- replication ---

    ensemble_size: int = knob(
        2,
        "Bookies that a topic's ledger is spread over.",
        at_least=1,
        at_most=255,
        pulsar="managedLedgerDefaultEnsembleSize",
    )
    write_quorum: int = knob(
        2, "Bookies that store each entry.", at_least=1, at_most=255, pulsar="managedLedgerDefaultWriteQuorum"
    )
    ack_quorum: int = knob(
        2,
        "Bookies that must have an entry on disk before its producer is answered.",
        at_least=1,
        at_most=255,
        pulsar="managedLedgerDefaultAckQuorum",
    )

    # --- when a new ledger is begun ---

    ledger_entries_max: int = knob(
        50_000,
        "A ledger with so many entries is closed and another begun, if it is older than `ledger_minutes_min`.",
        at_least=1,
        at_most=2**31,
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_bytes_max: int = knob(
        2048 * 2**20,
        "The same by size.",
        at_least=1,
        at_most=2**50,
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    # A busy topic would otherwise begin a ledger every few seconds, and each costs some metadata for as long as it is
    # retained.
    ledger_minutes_min: int = knob(
        10,
        "No ledger is closed because of its entries or size before it is so old. 0: at once.",
        at_least=0,
        at_most=_MINUTES_MAX,
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_minutes_max: int = knob(
        240,
        "A ledger that has entries is closed when it is so old.",
        at_least=1,
        at_most=_MINUTES_MAX,
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    ledger_retry_ms: int = knob(
        10_000,
        "When no new ledger can be made for a topic that still has a good one, the next try is made so much later.",
        at_least=1,
        at_most=3_600_000,
    )
    ledger_wait_ms: int = knob(
        30_000,
        "A topic whose ledger failed tries for so long to begin another; then it is unloaded.",
        at_least=1,
        at_most=3_600_000,
    )

    # --- appending ---

    # Twice what a ledger writer has in flight: what connections had read before they were told to stop fits in.
    appends_waiting_max: int = knob(
        10_000,
        "Entries of one topic that wait for a ledger; further ones are refused.",
        at_least=1,
        at_most=10_000_000,
    )
    append_bytes_waiting_max: int = knob(128 * 2**20, "Bytes of such entries.", at_least=2**20, at_most=2**40)

    # --- reading ---

    tail_cache_bytes_max: int = knob(
        128 * 2**20,
        "Memory for the newest entries of all topics: consumers that keep up are served from it. 0: none.",
        at_least=0,
        at_most=2**40,
        pulsar="managedLedgerCacheSizeMB",
    )
    ledgers_read_max: int = knob(16, "Ledgers of one topic that are kept open for reading.", at_least=1, at_most=10_000)
    read_ahead_bytes: int = knob(
        2**20,
        "A reader that goes through older entries has so many bytes read ahead for it. 0: none.",
        at_least=0,
        at_most=2**30,
    )
    read_aheads_max: int = knob(
        8, "Readers of one topic for which entries are read ahead at once.", at_least=1, at_most=1_000
    )

    # --- compaction ---

    compaction_retain_null_key: bool = knob(
        False, "Compaction keeps messages that have no key.", pulsar="topicCompactionRetainNullKey"
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ConfigError(
                f"topic: ack_quorum {self.ack_quorum}, write_quorum {self.write_quorum} and ensemble_size "
                f"{self.ensemble_size} must not decrease in this order"
            )
        if self.ledger_minutes_min > self.ledger_minutes_max:
            raise ConfigError(
                f"topic.ledger_minutes_min is {self.ledger_minutes_min}, above topic.ledger_minutes_max "
                f"{self.ledger_minutes_max}: lower the first or raise the second"
            )
