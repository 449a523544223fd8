"""Settings of auto-recovery: when ledgers of a lost bookie are repaired, how they are checked, and how fast."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob

NEVER_CHECK = 0
UNLIMITED_RATE = 0
_YEAR_S = 366 * 86_400


@dataclass(frozen=True, slots=True, kw_only=True)
class RecoveryConfig:
    """Auto-recovery, which restores the replicas of ledgers after a bookie is lost.

    All processes of a cluster that run auto-recovery should have the same values: any of them may be the auditor.
    Changes need a restart.
    """

    enabled: bool = knob(
        True,
        "Run auto-recovery inside each bookie process. If false, run `magnetar autorecovery` as a process of its own.",
        bookkeeper="autoRecoveryDaemonEnabled",
    )
    lost_bookie_delay_s: int = knob(
        0,
        "Seconds that a bookie may be away before its ledgers are repaired. If several are away, the repair begins at "
        "once. The first auditor of a cluster stores this value in the metadata; after that, the stored value counts.",
        within=(0, _YEAR_S),
        bookkeeper="lostBookieRecoveryDelay",
    )
    lost_bookies_max_percent: int = knob(
        50,
        "If more than this percentage of the bookies vanish together, the auditor waits instead of marking their "
        "ledgers: the network or the metadata store is the likely cause. `magnetar recovery trigger` overrides it.",
        within=(1, 100),
    )
    bookie_check_interval_s: int = knob(
        86_400,
        "Seconds between two searches for ledgers that name a lost bookie. Each reads the metadata of all ledgers. 0: "
        "only when a bookie is lost, and when a new auditor begins.",
        within=(NEVER_CHECK, _YEAR_S),
        bookkeeper="auditorPeriodicBookieCheckInterval",
    )
    ledger_check_interval_s: int = knob(
        604_800,
        "Seconds between two checks of all ledgers, which read the first and the last entry of every fragment from "
        "each of its bookies. 0: never.",
        within=(NEVER_CHECK, _YEAR_S),
        bookkeeper="auditorPeriodicCheckInterval",
    )
    placement_check_interval_s: int = knob(
        NEVER_CHECK,
        "Seconds between two checks that the bookies of closed ledgers keep the placement rules. Violations are "
        "counted and logged. 0: never.",
        within=(NEVER_CHECK, _YEAR_S),
        bookkeeper="auditorPeriodicPlacementPolicyCheckInterval",
    )
    scrub_bytes_per_s: int = knob(
        UNLIMITED_RATE,
        "Bytes per second that the auditor reads to verify every entry on every bookie, forever in the background. 0: "
        "no such scrub.",
        within=(0, 2**40),
    )
    verify_all_entries: bool = knob(
        False,
        "Verify every entry of a marked ledger on every bookie. If false, a worker verifies the first and the last "
        "entry of each fragment, and every entry only on the bookies that the mark names.",
        bookkeeper="auditorLedgerVerificationPercentage",
    )
    ledgers_at_once: int = knob(4, "Number of ledgers that one process repairs at the same time.", within=(1, 1_000))
    chunks_in_flight_max: int = knob(
        4,
        "Number of chunks of entries that are copied at the same time for one ledger.",
        within=(1, 1_000),
        bookkeeper="rereplicationEntryBatchSize",
    )
    chunk_bytes_max: int = knob(
        2**20, "Expected size in bytes of one chunk of entries that is copied.", within=(1, 64 * 2**20)
    )
    copy_bytes_per_s: int = knob(
        UNLIMITED_RATE,
        "Bytes per second that one process copies at most. 0: no limit.",
        within=(0, 2**40),
        bookkeeper="replicationRateByBytes",
    )
    open_ledger_grace_ms: int = knob(
        30_000,
        "Milliseconds that the writer of an open ledger has to replace a lost bookie by itself. After that, the ledger "
        "is fenced, closed and repaired.",
        within=(0, 86_400_000),
        bookkeeper="openLedgerRereplicationGracePeriod",
    )
    retry_ms: int = knob(
        10_000,
        "Longest time in milliseconds before the repair of a ledger that failed is tried again.",
        within=(10, 86_400_000),
        bookkeeper="lockReleaseOfFailedLedgerGracePeriod",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
