"""Settings of whoever reads and writes ledgers: patience with bookies, how much is under way at once."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError

NEVER = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerConfig:
    """A client of bookies.

    Processes may differ in everything, and values may change on restart. What a ledger must agree on for its whole
    life (ensemble, quorums, digest) is not here but in its metadata.
    """

    # --- bookies: connections ---

    connect_timeout_ms: int = knob(
        5_000,
        "How long a connection to a bookie may take to come about.",
        at_least=1,
        at_most=600_000,
        bookkeeper="connectTimeoutMillis",
    )
    reconnect_backoff_ms: int = knob(
        50,
        "After a failed connection nobody tries this bookie for so long; doubled with every further failure.",
        at_least=1,
        at_most=600_000,
    )
    reconnect_backoff_max_ms: int = knob(5_000, "The doubling ends here.", at_least=1, at_most=600_000)
    channel_idle_ms: int = knob(
        600_000,
        "Connections to a bookie that nobody has used for so long are closed. 0: never.",
        at_least=NEVER,
        at_most=86_400_000,
    )
    # As much as a busy writer sends in a tenth of a second: below it, a bookie that syncs slowly is no reason to wait.
    channel_unsent_bytes_max: int = knob(
        16 * 2**20,
        "With more bytes waiting for a bookie that does not read, writers wait for it.",
        at_least=1,
        at_most=2**40,
    )
    requests_in_flight_max: int = knob(
        20_000,
        "Reads and other requests that one bookie may owe an answer; further ones fail as if it were not reachable.",
        at_least=1,
        at_most=10_000_000,
    )

    # --- bookies: who is there ---

    bookie_info_interval_ms: int = knob(
        300_000,
        "How often bookies are asked for their free disk space, if `placement.disk_weight_enabled`.",
        at_least=10,
        at_most=86_400_000,
        bookkeeper="getBookieInfoIntervalSeconds",
    )

    # --- writing ---

    # Together with `adds_behind_max` far below the 20,000 adds of one connection at which a bookie refuses.
    adds_in_flight_max: int = knob(
        5_000,
        "Entries of one writer that are not acknowledged yet; at the limit, `add` waits.",
        at_least=1,
        at_most=1_000_000,
    )
    add_bytes_in_flight_max: int = knob(
        64 * 2**20,
        "Bytes of one writer that are not acknowledged yet; at the limit, `add` waits.",
        at_least=1,
        at_most=2**40,
    )
    add_timeout_ms: int = knob(
        5_000,
        "A bookie that has not answered an add for so long is taken for failed, and replaced.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="addEntryTimeoutSec",
    )
    adds_behind_max: int = knob(
        4_000,
        "A bookie that has not answered so many adds that others have acknowledged long since is slow: writers wait "
        "for it.",
        at_least=1,
        at_most=1_000_000,
    )
    slow_bookie_wait_ms: int = knob(
        2_000,
        "How long a writer waits for a slow bookie, or one that does not read what it is sent, or answers `too many "
        "requests`; then it is taken for failed.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="waitTimeoutOnBackpressureMillis",
    )

    add_quorum_timeout_ms: int = knob(
        30_000,
        "An entry that is not acknowledged for so long, whatever was tried, fails, and its writer with it.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="addEntryQuorumTimeoutSec",
    )
    delay_ensemble_change: bool = knob(
        False,
        "A failed bookie is replaced only when the ack quorum cannot be reached without it.",
        bookkeeper="delayEnsembleChange",
    )
    # Every bookie of a large cluster restarted one by one is far below it; a writer that chases dead bookies is above.
    ensemble_changes_max: int = knob(
        20,
        "So many times within `ensemble_changes_window_ms` a writer replaces bookies; then it fails.",
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxAllowedEnsembleChanges",
    )
    ensemble_changes_window_ms: int = knob(
        60_000, "The time that `ensemble_changes_max` is about.", at_least=1, at_most=86_400_000
    )
    replacement_wait_ms: int = knob(
        10_000,
        "How long a writer whose failed bookies nobody can replace waits for one to come, or to come back; then it "
        "fails. 0: it fails at once.",
        at_least=0,
        at_most=3_600_000,
    )
    explicit_lac_interval_ms: int = knob(
        0,
        "An idle writer tells the bookies of its last acknowledged entry after so long. 0: never; readers then learn "
        "of it from the next entry, or when the ledger is closed.",
        at_least=NEVER,
        at_most=3_600_000,
        bookkeeper="explicitLacInterval",
    )

    # --- reading ---

    read_timeout_ms: int = knob(
        5_000,
        "How long one bookie may take to answer a read; then another one is asked.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="readEntryTimeoutSec",
    )
    read_entries_max: int = knob(
        1_000,
        "Entries that one read of a range asks for at once; a longer range is read in pieces.",
        at_least=1,
        at_most=100_000,
    )
    read_batch_bytes_max: int = knob(
        2**20,
        "Bytes that such a piece should have at most; a single entry may be larger.",
        at_least=1,
        at_most=2**30,
    )
    batch_reads: bool = knob(
        True,
        "Read many entries with one request where every bookie has them all. Bookies before BookKeeper 4.17 cannot.",
        bookkeeper="batchReadEnabled",
    )
    sticky_reads: bool = knob(
        True,
        "Read a ledger from one bookie for as long as it answers, where every bookie has all entries, so that it can "
        "read ahead.",
        bookkeeper="stickyReadSEnabled",
    )
    speculative_read_percentile: int = knob(
        99,
        "A bookie that takes longer than so many percent of the last reads took gets company: another one is asked "
        "too.",
        at_least=1,
        at_most=100,
    )
    speculative_read_min_ms: int = knob(
        20,
        "Another bookie is never asked earlier than this, however quick reads are.",
        at_least=0,
        at_most=3_600_000,
    )
    speculative_read_max_ms: int = knob(
        2_000,
        "Another bookie is asked after this at the latest, and before enough reads were seen.",
        at_least=0,
        at_most=3_600_000,
        bookkeeper="speculativeReadTimeout",
    )
    tail_long_poll: bool = knob(
        True,
        "A reader that follows a ledger has bookies tell it of new entries; if false, it asks at an interval.",
    )
    long_poll_ms: int = knob(
        30_000,
        "How long a bookie holds such a question before it answers that nothing is new.",
        at_least=1,
        at_most=60_000,
    )
    tail_poll_interval_ms: int = knob(
        1_000,
        "The interval at which a reader asks for new entries itself.",
        at_least=1,
        at_most=3_600_000,
    )

    # --- recovery ---

    recovery_reads_in_flight_max: int = knob(
        64,
        "Entries that recovery reads at once, at most: as far as bookies told of entries, and a few behind that.",
        at_least=1,
        at_most=10_000,
        bookkeeper="recoveryReadBatchSize",
    )
    recovery_timeout_ms: int = knob(
        30_000,
        "A recovery that is not done by then gives up, without having changed anything.",
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
