"""Settings of topics: how their logs are cut into ledgers, replicated and cached, and how their cursors are stored."""

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

    ensemble_size: int = knob(
        2,
        "Number of bookies that the entries of one ledger are spread over.",
        within=(1, 255),
        pulsar="managedLedgerDefaultEnsembleSize",
    )
    write_quorum: int = knob(
        2, "Number of bookies that store each entry.", within=(1, 255), pulsar="managedLedgerDefaultWriteQuorum"
    )
    ack_quorum: int = knob(
        2,
        "Number of bookies that must have an entry on disk before its producer gets an acknowledgement.",
        within=(1, 255),
        pulsar="managedLedgerDefaultAckQuorum",
    )

    ledger_entries_max: int = knob(
        50_000,
        "Number of entries at which a ledger is closed and a new one is created, once it is older than "
        "`ledger_minutes_min`.",
        within=(1, 2**31),
        pulsar="managedLedgerMaxEntriesPerLedger",
    )
    ledger_bytes_max: int = knob(
        2048 * 2**20,
        "Size in bytes at which a ledger is closed and a new one is created, once it is older than "
        "`ledger_minutes_min`.",
        within=(1, 2**50),
        pulsar="managedLedgerMaxSizePerLedgerMbytes",
    )
    # A busy topic would otherwise create a ledger every few seconds, and each costs some metadata for as long as it is
    # retained.
    ledger_minutes_min: int = knob(
        10,
        "Age in minutes before which a ledger is not closed because of its entries or its size. 0: it may be closed "
        "at once.",
        within=(0, _MINUTES_MAX),
        pulsar="managedLedgerMinLedgerRolloverTimeMinutes",
    )
    ledger_minutes_max: int = knob(
        240,
        "Age in minutes at which a ledger that has entries is closed and a new one is created.",
        within=(1, _MINUTES_MAX),
        pulsar="managedLedgerMaxLedgerRolloverTimeMinutes",
    )
    ledger_retry_ms: int = knob(
        10_000,
        "Milliseconds to wait after a new ledger could not be created. Until then, the topic continues to use its "
        "current ledger.",
        within=(1, 3_600_000),
    )
    ledger_wait_ms: int = knob(
        30_000,
        "Milliseconds for which a topic whose ledger failed tries to create another one. After that, the topic is "
        "unloaded.",
        within=(1, 3_600_000),
    )

    # Twice what a ledger writer has in flight: enough for what connections have read before they are asked to stop.
    appends_waiting_max: int = knob(
        10_000,
        "Number of entries of one topic that may wait for a new ledger. Further entries are refused.",
        within=(1, 10_000_000),
    )
    append_bytes_waiting_max: int = knob(
        128 * 2**20,
        "Number of bytes of one topic that may wait for a new ledger. Further entries are refused.",
        within=(2**20, 2**40),
    )

    tail_cache_bytes_max: int = knob(
        128 * 2**20,
        "Memory in bytes for the newest entries of all topics, from which consumers that keep up are served. 0: no "
        "cache.",
        within=(0, 2**40),
        pulsar="managedLedgerCacheSizeMB",
    )
    ledgers_read_max: int = knob(
        16, "Number of ledgers of one topic that are kept open for reading.", within=(1, 10_000)
    )
    read_ahead_bytes: int = knob(
        2**20,
        "Number of bytes to read ahead for a consumer that reads older entries in sequence. 0: no read-ahead.",
        within=(0, 2**30),
    )
    read_aheads_max: int = knob(8, "Number of read-aheads that one topic may hold at the same time.", within=(1, 1_000))

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


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorConfig:
    """Cursors, which store the acknowledgements of subscriptions.

    All values may differ between brokers. Changes need a restart. A cursor's ledgers have the same quorums as the
    ledgers of its topic.
    """

    # Pulsar's default is one write per second for each cursor.
    mark_delete_interval_ms: int = knob(
        1_000,
        "Milliseconds for which acknowledgements are collected before they are stored together. If a client waits for "
        "a receipt, they are stored at once.",
        within=(1, 3_600_000),
        pulsar="managedLedgerDefaultMarkDeleteRateLimit",
    )
    store_timeout_ms: int = knob(
        60_000,
        "Milliseconds that storing acknowledgements may take, including the creation of a new ledger. After that, it "
        "counts as failed.",
        within=(1, 3_600_000),
        pulsar="managedLedgerMetadataOperationsTimeoutSeconds",
    )
    open_concurrency_max: int = knob(
        16, "Number of cursors of one topic that are opened at the same time.", within=(1, 10_000)
    )

    # As many as fit into an entry with room to spare: 10,000 runs are 200 kB at most.
    ranges_stored_max: int = knob(
        10_000,
        "Number of ranges of individually acknowledged entries that are stored for a subscription. Entries in further "
        "ranges are delivered again after a crash.",
        within=(0, 1_000_000),
        pulsar="managedLedgerMaxUnackedRangesToPersist",
    )
    batches_stored_max: int = knob(
        10_000,
        "Number of partly acknowledged batches whose state is stored for a subscription. Further ones are delivered "
        "again as a whole after a crash.",
        within=(0, 1_000_000),
        pulsar="managedLedgerMaxBatchDeletedIndexToPersist",
    )
    # A node of the metadata store should stay below 100 kB.
    ranges_in_metadata_max: int = knob(
        1_000,
        "Number of ranges up to which a cursor is saved in the metadata store when it is closed. With more ranges, it "
        "stays in its ledger.",
        within=(0, 100_000),
        pulsar="managedLedgerMaxUnackedRangesToPersistInMetadataStore",
    )
    ranges_as_bitmaps: bool = knob(
        True,
        "Store individually acknowledged entries as one bitmap for each ledger, which takes less space. Pulsar before "
        "4.0 cannot read this format.",
        pulsar="managedLedgerPersistIndividualAckAsLongArray",
    )

    ledger_entries_max: int = knob(
        50_000,
        "Number of entries at which a cursor's ledger is replaced by a new one.",
        within=(1, 2**31),
        pulsar="managedLedgerCursorMaxEntriesPerLedger",
    )
    ledger_minutes_max: int = knob(
        240,
        "Age in minutes at which a cursor's ledger is replaced by a new one.",
        within=(1, 366 * 24 * 60),
        pulsar="managedLedgerCursorRolloverTimeInSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.ranges_in_metadata_max > self.ranges_stored_max:
            raise ConfigError(
                f"cursor.ranges_in_metadata_max ({self.ranges_in_metadata_max}) exceeds cursor.ranges_stored_max "
                f"({self.ranges_stored_max}): lower the first or raise the second"
            )
