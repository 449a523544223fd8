"""Settings of cursors: how the acknowledgements of subscriptions are kept."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class CursorConfig:
    """Per broker: brokers may differ in everything, and values may change on restart. Cursor ledgers have the quorums
    of their topic's ledgers.
    """

    # --- when ---

    # Pulsar's default is one write per second for each cursor.
    mark_delete_interval_ms: int = knob(
        1_000,
        "Acknowledgements that nobody waits for are stored this much later, all together.",
        at_least=1,
        at_most=3_600_000,
        pulsar="managedLedgerDefaultMarkDeleteRateLimit",
    )
    store_timeout_ms: int = knob(
        60_000,
        "How long storing acknowledgements may take, new ledger included; then it counts as failed.",
        at_least=1,
        at_most=3_600_000,
        pulsar="managedLedgerMetadataOperationsTimeoutSeconds",
    )
    open_concurrency_max: int = knob(
        16, "Cursors of one topic that are opened at the same time.", at_least=1, at_most=10_000
    )

    # --- how much ---

    # As many as fit into an entry with room to spare: 10,000 runs are 200 kB at most.
    ranges_stored_max: int = knob(
        10_000,
        "Runs of entries acknowledged out of order that are stored; what is beyond is delivered again after a crash.",
        at_least=0,
        at_most=1_000_000,
        pulsar="managedLedgerMaxUnackedRangesToPersist",
    )
    batches_stored_max: int = knob(
        10_000,
        "Batches acknowledged in part whose acknowledged messages are stored; those of others are delivered again.",
        at_least=0,
        at_most=1_000_000,
        pulsar="managedLedgerMaxBatchDeletedIndexToPersist",
    )
    # A node of the metadata store should stay below 100 kB.
    ranges_in_metadata_max: int = knob(
        1_000,
        "With more runs than this a cursor that is closed leaves its state in its ledger, not in the metadata store.",
        at_least=0,
        at_most=100_000,
        pulsar="managedLedgerMaxUnackedRangesToPersistInMetadataStore",
    )
    ranges_as_bitmaps: bool = knob(
        True,
        "Store acknowledged entries as one bitmap per ledger, which is shorter. Pulsar before 4.0 cannot read that.",
        pulsar="managedLedgerPersistIndividualAckAsLongArray",
    )

    # --- cursor ledgers ---

    ledger_entries_max: int = knob(
        50_000,
        "A cursor ledger with so many entries is replaced by a new one.",
        at_least=1,
        at_most=2**31,
        pulsar="managedLedgerCursorMaxEntriesPerLedger",
    )
    ledger_minutes_max: int = knob(
        240,
        "A cursor ledger that is written to is replaced when it is so old.",
        at_least=1,
        at_most=366 * 24 * 60,
        pulsar="managedLedgerCursorRolloverTimeInSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.ranges_in_metadata_max > self.ranges_stored_max:
            raise ConfigError(
                f"cursor.ranges_in_metadata_max ({self.ranges_in_metadata_max}) exceeds cursor.ranges_stored_max "
                f"({self.ranges_stored_max}): lower it, or raise the other"
            )
