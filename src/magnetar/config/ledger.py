"""Settings of the ledger client: timeouts towards bookies, and limits on what is in flight."""

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
        at_least=1,
        at_most=600_000,
        bookkeeper="connectTimeoutMillis",
    )
    reconnect_backoff_ms: int = knob(
        50,
        "Milliseconds to wait before connecting again to a bookie after a failure. Each further failure doubles the "
        "wait.",
        at_least=1,
        at_most=600_000,
    )
    reconnect_backoff_max_ms: int = knob(
        5_000, "Longest wait in milliseconds between two attempts to connect to a bookie.", at_least=1, at_most=600_000
    )
    channel_idle_ms: int = knob(
        600_000,
        "Milliseconds without use after which the connections to a bookie are closed. 0: never.",
        at_least=NEVER,
        at_most=86_400_000,
    )
    # As much as a busy writer sends in a tenth of a second: below it, a bookie that syncs slowly is no reason to wait.
    channel_unsent_bytes_max: int = knob(
        16 * 2**20,
        "Number of unsent bytes for one bookie above which writers wait for it.",
        at_least=1,
        at_most=2**40,
    )
    requests_in_flight_max: int = knob(
        20_000,
        "Largest number of unanswered reads and other requests to one bookie, not counting adds. Further requests "
        "fail as if the bookie were unreachable.",
        at_least=1,
        at_most=10_000_000,
    )

    # --- bookies: free disk space ---

    bookie_info_interval_ms: int = knob(
        300_000,
        "Milliseconds between two requests for the free disk space of bookies. Used only with "
        "`placement.disk_weight_enabled`.",
        at_least=10,
        at_most=86_400_000,
        bookkeeper="getBookieInfoIntervalSeconds",
    )

    # --- writing ---

    # Together with `adds_behind_max` far below the 20,000 adds of one connection at which a bookie refuses.
    adds_in_flight_max: int = knob(
        5_000,
        "Largest number of unacknowledged entries of one writer. At the limit, `add` waits.",
        at_least=1,
        at_most=1_000_000,
    )
    add_bytes_in_flight_max: int = knob(
        64 * 2**20,
        "Largest number of unacknowledged bytes of one writer. At the limit, `add` waits.",
        at_least=1,
        at_most=2**40,
    )
    add_timeout_ms: int = knob(
        5_000,
        "Milliseconds that a bookie may take to answer an add. After that, the writer treats it as failed and "
        "replaces it.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="addEntryTimeoutSec",
    )
    adds_behind_max: int = knob(
        4_000,
        "Number of entries by which one bookie may lag behind the others before writers wait for it. Entries count "
        "that other bookies have confirmed and this one has not.",
        at_least=1,
        at_most=1_000_000,
    )
    slow_bookie_wait_ms: int = knob(
        2_000,
        "Milliseconds that a writer waits for a bookie that lags, does not read, or answers `too many requests`. "
        "After that, the writer treats it as failed.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="waitTimeoutOnBackpressureMillis",
    )

    add_quorum_timeout_ms: int = knob(
        30_000,
        "Milliseconds after which an entry that is still not acknowledged fails, together with its writer, despite "
        "all retries.",
        at_least=1,
        at_most=3_600_000,
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
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxAllowedEnsembleChanges",
    )
    ensemble_changes_window_ms: int = knob(
        60_000,
        "Length in milliseconds of the period in which `ensemble_changes_max` counts replacements.",
        at_least=1,
        at_most=86_400_000,
    )
    replacement_wait_ms: int = knob(
        10_000,
        "Milliseconds that a writer waits for a bookie when no replacement is available for a failed one. After that, "
        "the writer fails; 0: it fails at once.",
        at_least=0,
        at_most=3_600_000,
    )
    explicit_lac_interval_ms: int = knob(
        0,
        "Milliseconds after which an idle writer reports its last acknowledged entry to the bookies. 0: never; "
        "readers then learn of that entry from the next one, or when the ledger is closed.",
        at_least=NEVER,
        at_most=3_600_000,
        bookkeeper="explicitLacInterval",
    )

    # --- reading ---

    read_timeout_ms: int = knob(
        5_000,
        "Milliseconds that one bookie may take to answer a read. After that, another bookie is asked.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="readEntryTimeoutSec",
    )
    read_entries_max: int = knob(
        1_000,
        "Number of entries that a range read requests at once. A longer range is read in several pieces.",
        at_least=1,
        at_most=100_000,
    )
    read_batch_bytes_max: int = knob(
        2**20,
        "Number of bytes that one piece of a range read should not exceed. A single entry may be larger.",
        at_least=1,
        at_most=2**30,
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
        99,
        "Ask a second bookie once a read is slower than this percentile of recent reads.",
        at_least=1,
        at_most=100,
    )
    speculative_read_min_ms: int = knob(
        20,
        "Shortest time in milliseconds before a second bookie is asked, however fast recent reads were.",
        at_least=0,
        at_most=3_600_000,
    )
    speculative_read_max_ms: int = knob(
        2_000,
        "Longest time in milliseconds before a second bookie is asked. It is also used until enough reads have been "
        "measured.",
        at_least=0,
        at_most=3_600_000,
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
        at_least=1,
        at_most=60_000,
    )
    tail_poll_interval_ms: int = knob(
        1_000,
        "Milliseconds between two requests for new entries when long polls are not used.",
        at_least=1,
        at_most=3_600_000,
    )

    # --- recovery ---

    recovery_reads_in_flight_max: int = knob(
        64,
        "Number of entries that the recovery of a ledger reads at the same time.",
        at_least=1,
        at_most=10_000,
        bookkeeper="recoveryReadBatchSize",
    )
    recovery_timeout_ms: int = knob(
        30_000,
        "Milliseconds that the recovery of a ledger may take. After that, it fails and leaves the ledger unchanged.",
        at_least=1,
        at_most=86_400_000,
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
