"""Settings of topics: how their logs are cut into ledgers, replicated and cached."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

_MINUTES_MAX = 366 * 24 * 60


@dataclass(frozen=True, slots=True, kw_only=True)
class TopicConfig:
    """The logs of topics: replication, the ledgers they consist of, and caches.

    All brokers of a cluster should have the same values, because each of them may serve any topic. A policy of a
    namespace may override the quorums. Changes need a restart, and apply only to new ledgers.
    """

    # --- replication ---

    ensemble_size: int = knob(
        2,
        "Number of bookies that the entries of one ledger are spread over.",
        at_least=1,
        at_most=255,
        pulsar="managedLedgerDefaultEnsembleSize",
    )
    write_quorum: int = knob(
        2, "Number of bookies that store each entry.", at_least=1, at_most=255, pulsar="managedLedgerDefaultWriteQuorum"
    )
    ack_quorum: int = knob(
        2,
        "Number of bookies that must have an entry on disk before its producer gets an acknowledgement.",
        at_least=1,
        at_most=255,
        pulsar="managedLedgerDefaultAckQuorum",
    )

    # --- when a new ledger is created ---

    ledger_entries_max: int = knob(
        50_000,
        "Number of entries at which a ledger is closed and a new one is created, once it is older than "
        "`ledger_minutes_min`.",
        at_least=1,
        at_most=2**31,
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_bytes_max: int = knob(
        2048 * 2**20,
        "Size in bytes at which a ledger is closed and a new one is created, once it is older than "
        "`ledger_minutes_min`.",
        at_least=1,
        at_most=2**50,
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    # A busy topic would otherwise create a ledger every few seconds, and each costs some metadata for as long as it is
    # retained.
    ledger_minutes_min: int = knob(
        10,
        "Age in minutes before which a ledger is not closed because of its entries or its size. 0: it may be closed "
        "at once.",
        at_least=0,
        at_most=_MINUTES_MAX,
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_minutes_max: int = knob(
        240,
        "Age in minutes at which a ledger that has entries is closed and a new one is created.",
        at_least=1,
        at_most=_MINUTES_MAX,
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    ledger_retry_ms: int = knob(
        10_000,
        "Milliseconds to wait after a new ledger could not be created. Until then, the topic continues to use its "
        "current ledger.",
        at_least=1,
        at_most=3_600_000,
    )
    ledger_wait_ms: int = knob(
        30_000,
        "Milliseconds for which a topic whose ledger failed tries to create another one. After that, the topic is "
        "unloaded.",
        at_least=1,
        at_most=3_600_000,
    )

    # --- appending ---

    # Twice what a ledger writer has in flight: enough for what connections have read before they are asked to stop.
    appends_waiting_max: int = knob(
        10_000,
        "Number of entries of one topic that may wait for a new ledger. Further entries are refused.",
        at_least=1,
        at_most=10_000_000,
    )
    append_bytes_waiting_max: int = knob(
        128 * 2**20,
        "Number of bytes of one topic that may wait for a new ledger. Further entries are refused.",
        at_least=2**20,
        at_most=2**40,
    )

    # --- reading ---

    tail_cache_bytes_max: int = knob(
        128 * 2**20,
        "Memory in bytes for the newest entries of all topics, from which consumers that keep up are served. 0: no "
        "cache.",
        at_least=0,
        at_most=2**40,
        pulsar="managedLedgerCacheSizeMB",
    )
    ledgers_read_max: int = knob(
        16, "Number of ledgers of one topic that are kept open for reading.", at_least=1, at_most=10_000
    )
    read_ahead_bytes: int = knob(
        2**20,
        "Number of bytes to read ahead for a consumer that reads older entries in sequence. 0: no read-ahead.",
        at_least=0,
        at_most=2**30,
    )
    read_aheads_max: int = knob(
        8, "Number of read-aheads that one topic may hold at the same time.", at_least=1, at_most=1_000
    )

    # --- compaction ---

    compaction_retain_null_key: bool = knob(
        False,
        "Compaction keeps messages without a key. If false, it drops them.",
        pulsar="topicCompactionRetainNullKey",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if not self.ack_quorum <= self.write_quorum <= self.ensemble_size:
            raise ConfigError(
                f"topic: ack_quorum {self.ack_quorum}, write_quorum {self.write_quorum} and ensemble_size "
                f"{self.ensemble_size} must not decrease in this order: raise the later ones"
            )
        if self.ledger_minutes_min > self.ledger_minutes_max:
            raise ConfigError(
                f"topic.ledger_minutes_min is {self.ledger_minutes_min}, above topic.ledger_minutes_max "
                f"{self.ledger_minutes_max}: lower the first or raise the second"
            )
