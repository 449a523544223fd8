"""Settings of the ledger client: timeouts towards bookies, limits on what is in flight, and the choice of bookies."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

NEVER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """The ledger client: how a broker, or another process, reads from bookies and writes to them.

    All values may differ between processes. Changes need a restart. The ensemble, quorums and digest of
    a ledger are stored in its metadata, not configured here. An *add* is a request to store one entry.
    """

    # --- bookies: connections ---

    connect_timeout_ms: int = knob(
        5_000,
        "Milliseconds that connecting to a bookie may take.",
        within=(1, 600_000),
        bookkeeper="connectTimeoutMillis",
    )
    reconnect_backoff_ms: int = knob(
        50,
        "Milliseconds to wait before connecting again to a bookie after a failure. Each further failure doubles the "
        "wait.",
        within=(1, 600_000),
    )
    reconnect_backoff_max_ms: int = knob(
        5_000, "Longest wait in milliseconds between two attempts to connect to a bookie.", within=(1, 600_000)
    )
    channel_idle_ms: int = knob(
        600_000,
        "Milliseconds without use after which the connections to a bookie are closed. 0: never.",
        within=(NEVER, 86_400_000),
    )
    # As much as a busy writer sends in a tenth of a second: below it, a bookie that syncs slowly is no reason to wait.
    channel_unsent_bytes_max: int = knob(
        16 * 2**20, "Number of unsent bytes for one bookie above which writers wait for it.", within=(1, 2**40)
    )
    requests_in_flight_max: int = knob(
        20_000,
        "Largest number of unanswered reads and other requests to one bookie, not counting adds. Further requests "
        "fail as if the bookie were unreachable.",
        within=(1, 10_000_000),
    )

    # --- bookies: free disk space ---

    bookie_info_interval_ms: int = knob(
        300_000,
        "Milliseconds between two requests for the free disk space of bookies. Used only with "
        "`placement.disk_weight_enabled`.",
        within=(10, 86_400_000),
        bookkeeper="getBookieInfoIntervalSeconds",
    )

    # Together with `adds_behind_max` far below the 20,000 adds of one connection at which a bookie refuses.
    adds_in_flight_max: int = knob(
        5_000,
        "Largest number of unacknowledged entries of one writer. At the limit, `add` waits.",
        within=(1, 1_000_000),
    )
    add_bytes_in_flight_max: int = knob(
        64 * 2**20,
        "Largest number of unacknowledged bytes of one writer. At the limit, `add` waits.",
        within=(1, 2**40),
    )
    add_timeout_ms: int = knob(
        5_000,
        "Milliseconds that a bookie may take to answer an add. After that, the writer treats it as failed and "
        "replaces it.",
        within=(1, 3_600_000),
        bookkeeper="addEntryTimeoutSec",
    )
    adds_behind_max: int = knob(
        4_000,
        "Number of entries by which one bookie may lag behind the others before writers wait for it. Entries count "
        "that other bookies have confirmed and this one has not.",
        within=(1, 1_000_000),
    )
    slow_bookie_wait_ms: int = knob(
        2_000,
        "Milliseconds that a writer waits for a bookie that lags, does not read, or answers `too many requests`. "
        "After that, the writer treats it as failed.",
        within=(1, 3_600_000),
        bookkeeper="waitTimeoutOnBackpressureMillis",
    )

    add_quorum_timeout_ms: int = knob(
        30_000,
        "Milliseconds after which an entry that is still not acknowledged fails, together with its writer, despite "
        "all retries.",
        within=(1, 3_600_000),
        bookkeeper="addEntryQuorumTimeoutSec",
    )
    delay_ensemble_change: bool = knob(
        False,
        "Replace a failed bookie only when the ack quorum cannot be reached without it.",
        bookkeeper="delayEnsembleChange",
    )
    # Every bookie of a large cluster restarted one by one is far below it; a writer that chases dead bookies is above.
    ensemble_changes_max: int = knob(
        20,
        "Number of times that a writer may replace bookies within `ensemble_changes_window_ms`. After that, the "
        "writer fails.",
        within=(1, 1_000_000),
        bookkeeper="maxAllowedEnsembleChanges",
    )
    ensemble_changes_window_ms: int = knob(
        60_000,
        "Length in milliseconds of the period in which `ensemble_changes_max` counts replacements.",
        within=(1, 86_400_000),
    )
    replacement_wait_ms: int = knob(
        10_000,
        "Milliseconds that a writer waits for a bookie when no replacement is available for a failed one. After that, "
        "the writer fails; 0: it fails at once.",
        within=(0, 3_600_000),
    )
    explicit_lac_interval_ms: int = knob(
        0,
        "Milliseconds after which an idle writer reports its last acknowledged entry to the bookies. 0: never; "
        "readers then learn of that entry from the next one, or when the ledger is closed.",
        within=(NEVER, 3_600_000),
        bookkeeper="explicitLacInterval",
    )

    read_timeout_ms: int = knob(
        5_000,
        "Milliseconds that one bookie may take to answer a read. After that, another bookie is asked.",
        within=(1, 3_600_000),
        bookkeeper="readEntryTimeoutSec",
    )
    read_entries_max: int = knob(
        1_000,
        "Number of entries that a range read requests at once. A longer range is read in several pieces.",
        within=(1, 100_000),
    )
    read_batch_bytes_max: int = knob(
        2**20,
        "Number of bytes that one piece of a range read should not exceed. A single entry may be larger.",
        within=(1, 2**30),
    )
    batch_reads: bool = knob(
        True,
        "Read many entries with one request where each bookie stores all entries of the ledger. Bookies before "
        "BookKeeper 4.17 do not support this.",
        bookkeeper="batchReadEnabled",
    )
    sticky_reads: bool = knob(
        True,
        "Read a ledger from the same bookie for as long as it answers, so that the bookie can read ahead. Used where "
        "each bookie stores all entries of the ledger.",
        bookkeeper="stickyReadSEnabled",
    )
    speculative_read_percentile: int = knob(
        99, "Ask a second bookie once a read is slower than this percentile of recent reads.", within=(1, 100)
    )
    speculative_read_min_ms: int = knob(
        20,
        "Shortest time in milliseconds before a second bookie is asked, however fast recent reads were.",
        within=(0, 3_600_000),
    )
    speculative_read_max_ms: int = knob(
        2_000,
        "Longest time in milliseconds before a second bookie is asked. It is also used until enough reads have been "
        "measured.",
        within=(0, 3_600_000),
        bookkeeper="speculativeReadTimeout",
    )
    tail_long_poll: bool = knob(
        True,
        "A reader that follows a ledger waits for bookies to report new entries. If false, it asks every "
        "`tail_poll_interval_ms`.",
    )
    long_poll_ms: int = knob(
        30_000,
        "Milliseconds that a bookie may hold a long poll before it answers that there are no new entries.",
        within=(1, 60_000),
    )
    tail_poll_interval_ms: int = knob(
        1_000, "Milliseconds between two requests for new entries when long polls are not used.", within=(1, 3_600_000)
    )

    recovery_reads_in_flight_max: int = knob(
        64,
        "Number of entries that the recovery of a ledger reads at the same time.",
        within=(1, 10_000),
        bookkeeper="recoveryReadBatchSize",
    )
    recovery_timeout_ms: int = knob(
        30_000,
        "Milliseconds that the recovery of a ledger may take. After that, it fails and leaves the ledger unchanged.",
        within=(1, 86_400_000),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.speculative_read_min_ms > self.speculative_read_max_ms:
            raise ConfigError(
                f"ledger.speculative_read_min_ms is {self.speculative_read_min_ms}, above "
                f"ledger.speculative_read_max_ms {self.speculative_read_max_ms}: lower the first or raise the second"
            )
        if self.reconnect_backoff_ms > self.reconnect_backoff_max_ms:
            raise ConfigError(
                f"ledger.reconnect_backoff_ms is {self.reconnect_backoff_ms}, above ledger.reconnect_backoff_max_ms "
                f"{self.reconnect_backoff_max_ms}: lower the first or raise the second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class PlacementConfig:
    """How brokers and other ledger clients choose the bookies of a ledger.

    All processes of a cluster should have the same values: one process creates a ledger, and others may repair it.
    Changes need a restart, and apply only to ledgers that are created or repaired after it.
    """

    policy: str = knob(
        "rack",
        "How the bookies of a ledger are chosen: at random, spread over racks, or spread over regions and racks.",
        choices=("random", "rack", "region"),
        bookkeeper="ensemblePlacementPolicy",
        pulsar="bookkeeperClientRackawarePolicyEnabled",
    )
    # With copies in two racks, one survives the loss of a rack.
    min_racks_per_write_quorum: int = knob(
        2,
        "Number of racks that each entry must be spread over. A write quorum with fewer bookies than this uses one "
        "rack for each bookie.",
        within=(1, 255),
        bookkeeper="minNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientMinNumRacksPerWriteQuorum",
    )
    enforce_min_racks: bool = knob(
        False,
        "Refuse to create a ledger that would break `min_racks_per_write_quorum`, and use no bookie whose rack is "
        "unknown. If false, the rule is only a preference.",
        bookkeeper="enforceMinNumRacksPerWriteQuorum",
        pulsar="bookkeeperClientEnforceMinNumRacksPerWriteQuorum",
    )
    racks: str = knob(
        "",
        "Racks of bookies as `bookie=rack, …`. A bookie is a `host:port`, a bookie id or a host; a rack is `/rack` or "
        "`/region/rack`. This setting overrides the metadata node `/bookies`.",
    )
    disk_weight_enabled: bool = knob(
        False,
        "Prefer bookies with more free disk space.",
        bookkeeper="diskWeightBasedPlacementEnabled",
        pulsar="bookkeeperDiskWeightBasedPlacementEnabled",
    )
    # Without a limit, a new and empty bookie would get nearly every new ledger of the cluster at once.
    disk_weight_max_multiple: int = knob(
        3,
        "Upper bound of a bookie's weight, as a multiple of the median free disk space. It keeps a new, empty bookie "
        "from getting nearly all new ledgers.",
        within=(1, 1_000),
        bookkeeper="bookieMaxMultipleForWeightBasedPlacement",
    )
    quarantine_s: int = knob(
        1_800,
        "Seconds for which a bookie that failed too often gets no new ledgers, unless too few other bookies exist. 0 "
        "turns quarantine off.",
        within=(0, 86_400),
        bookkeeper="bookieQuarantineTimeSeconds",
        pulsar="bookkeeperClientHealthCheckQuarantineTimeInSeconds",
    )
    quarantine_errors: int = knob(
        5,
        "Number of failed requests within `quarantine_interval_s` that puts a bookie in quarantine.",
        within=(1, 100_000),
        bookkeeper="bookieErrorThresholdPerInterval",
        pulsar="bookkeeperClientHealthCheckErrorThresholdPerInterval",
    )
    quarantine_interval_s: int = knob(
        60,
        "Length in seconds of the period in which `quarantine_errors` counts failed requests.",
        within=(1, 86_400),
        bookkeeper="bookieHealthCheckIntervalSeconds",
        pulsar="bookkeeperClientHealthCheckIntervalSeconds",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        rack_pairs(self.racks)


def rack_pairs(text: str) -> tuple[tuple[str, str], ...]:
    """Returns the (bookie, rack) pairs of a `racks` setting, in its order."""
    pairs = []
    for item in (item.strip() for item in text.split(",")):
        if not item:
            continue  # A comma at the end is harmless.
        bookie, separator, rack = (part.strip() for part in item.partition("="))
        if not (bookie and separator and rack.strip("/")):
            raise ConfigError(
                f"placement.racks: {item!r} does not have the form bookie=rack, such as host:3181=/region/rack"
            )
        pairs.append((bookie, rack))
    return tuple(pairs)
