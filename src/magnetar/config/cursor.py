"""Settings of cursors: how the acknowledgements of subscriptions are stored."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorConfig:
    """Cursors, which store the acknowledgements of subscriptions.

    All values may differ between brokers. Changes need a restart. A cursor's ledgers have the same quorums as the
    ledgers of its topic.
    """

    # --- when ---

    # Pulsar's default is one write per second for each cursor.
    mark_delete_interval_ms: int = knob(
        1_000,
        "Milliseconds for which acknowledgements are collected before they are stored together. If a client waits for "
        "a receipt, they are stored at once.",
        at_least=1,
        at_most=3_600_000,
        pulsar="managedLedgerDefaultMarkDeleteRateLimit",
    )
    store_timeout_ms: int = knob(
        60_000,
        "Milliseconds that storing acknowledgements may take, including the creation of a new ledger. After that, it "
        "counts as failed.",
        at_least=1,
        at_most=3_600_000,
        pulsar="managedLedgerMetadataOperationsTimeoutSeconds",
    )
    open_concurrency_max: int = knob(
        16, "Number of cursors of one topic that are opened at the same time.", at_least=1, at_most=10_000
    )

    # --- how much ---

    # As many as fit into an entry with room to spare: 10,000 runs are 200 kB at most.
    ranges_stored_max: int = knob(
        10_000,
        "Number of ranges of individually acknowledged entries that are stored for a subscription. Entries in further "
        "ranges are delivered again after a crash.",
        at_least=0,
        at_most=1_000_000,
        pulsar="managedLedgerMaxUnackedRangesToPersist",
    )
    batches_stored_max: int = knob(
        10_000,
        "Number of partly acknowledged batches whose state is stored for a subscription. Further ones are delivered "
        "again as a whole after a crash.",
        at_least=0,
        at_most=1_000_000,
        pulsar="managedLedgerMaxBatchDeletedIndexToPersist",
    )
    # A node of the metadata store should stay below 100 kB.
    ranges_in_metadata_max: int = knob(
        1_000,
        "Number of ranges up to which a cursor is saved in the metadata store when it is closed. With more ranges, it "
        "stays in its ledger.",
        at_least=0,
        at_most=100_000,
        pulsar="managedLedgerMaxUnackedRangesToPersistInMetadataStore",
    )
    ranges_as_bitmaps: bool = knob(
        True,
        "Store individually acknowledged entries as one bitmap for each ledger, which takes less space. Pulsar before "
        "4.0 cannot read this format.",
        pulsar="managedLedgerPersistIndividualAckAsLongArray",
    )

    # --- cursor ledgers ---

    ledger_entries_max: int = knob(
        50_000,
        "Number of entries at which a cursor's ledger is replaced by a new one.",
        at_least=1,
        at_most=2**31,
        pulsar="managedLedgerCursorMaxEntriesPerLedger",
    )
    ledger_minutes_max: int = knob(
        240,
        "Age in minutes at which a cursor's ledger is replaced by a new one.",
        at_least=1,
        at_most=366 * 24 * 60,
        pulsar="managedLedgerCursorRolloverTimeInSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.ranges_in_metadata_max > self.ranges_stored_max:
            raise ConfigError(
                f"cursor.ranges_in_metadata_max ({self.ranges_in_metadata_max}) exceeds cursor.ranges_stored_max "
                f"({self.ranges_stored_max}): lower the first or raise the second"
            )
