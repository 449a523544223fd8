"""Settings of a storage node: its name and addresses, its disks, and its limits against overload."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError
from magnetar.ids import bookie_id

ALL_INTERFACES = ("0.0.0.0", "::")  # noqa: S104 - what a wildcard looks like, not a place to listen
LOCAL_HOST = "127.0.0.1"
NO_HTTP = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class BookieConfig:
    """A bookie, which is a storage node.

    All values may differ between bookies. A bookie's id (or its host and port) and its directories must stay as they
    were at its first start. Other changes need a restart. An *add* is a request to store one entry.
    """

    dir: str = knob(
        "magnetar-data/bookie",
        "Directory of the bookie's data. It contains `journal` and `ledgers`, unless `journal_dirs` and `ledger_dirs` "
        "name other places.",
    )
    journal_dirs: str = knob(
        "",
        "Directories of the journal (write-ahead log), separated by commas. Best on a device of their own. Empty: "
        "`journal` in `dir`.",
        bookkeeper="journalDirectories",
    )
    ledger_dirs: str = knob(
        "",
        "Directories of the entry logs and the index, separated by commas. Empty: `ledgers` in `dir`.",
        bookkeeper="ledgerDirectories",
    )
    port: int = knob(
        3181,
        "TCP port for clients. 0: the system chooses a free port at the first start; it is saved with the data and "
        "used again.",
        within=(0, 65_535),
        bookkeeper="bookiePort",
    )
    listen_host: str = knob(
        "",
        "Address to listen on. Empty: all interfaces if `advertised_host` is set, otherwise only this machine, "
        "because a bookie does not authenticate its clients.",
        bookkeeper="listeningInterface",
    )
    advertised_host: str = knob(
        "",
        "Host name or address at which other machines reach this bookie. Set it on every bookie of a cluster. Empty: "
        "the address it listens on.",
        bookkeeper="advertisedAddress",
    )
    bookie_id: str = knob(
        "",
        "Permanent name of this bookie in the metadata of ledgers. Empty: the advertised `host:port`.",
        bookkeeper="bookieId",
    )
    http_port: int = knob(
        0,
        "TCP port for `/metrics` and `/health`. 0: any free port, which is printed when the bookie is ready; -1: no "
        "HTTP.",
        within=(NO_HTTP, 65_535),
        bookkeeper="httpServerPort",
    )

    disk_usage_threshold_percent: int = knob(
        95,
        "Disk usage in percent above which a bookie accepts no more entries and becomes read-only. One directory on "
        "such a disk is enough.",
        within=(1, 99),
        bookkeeper="diskUsageThreshold",
    )
    # Apache's default equals its threshold; there a bookie near it changes its state at every check.
    disk_usage_low_water_mark_percent: int = knob(
        90,
        "Disk usage in percent below which a bookie that became read-only accepts entries again. It must hold for all "
        "its disks.",
        within=(1, 99),
        bookkeeper="diskUsageLwmThreshold",
    )
    disk_usage_warn_percent: int = knob(
        90,
        "Disk usage in percent above which a warning is logged.",
        within=(1, 99),
        bookkeeper="diskUsageWarnThreshold",
    )
    disk_check_interval_ms: int = knob(
        10_000, "Milliseconds between two checks of disk usage.", within=(10, 3_600_000), bookkeeper="diskCheckInterval"
    )
    # One entry log and a little more: compaction writes a new log before it removes the old one.
    disk_reserve_compaction_bytes: int = knob(
        1_200 * 2**20,
        "Free bytes that a read-only bookie needs to continue compaction, which frees disk space.",
        within=(0, 2**50),
        bookkeeper="minUsableSizeForEntryLogCreation",
    )
    disk_reserve_high_priority_bytes: int = knob(
        1_200 * 2**20,
        "Free bytes that a read-only bookie needs to accept entries of ledger recovery and re-replication.",
        within=(0, 2**50),
        bookkeeper="minUsableSizeForHighPriorityWrites",
    )
    read_only_mode_enabled: bool = knob(
        True,
        "When a disk is full, become read-only. If false, the bookie stops instead.",
        bookkeeper="readOnlyModeEnabled",
    )
    force_read_only: bool = knob(
        False,
        "Start read-only and stay read-only, regardless of disk space and of requests to become writable.",
        bookkeeper="forceReadOnlyBookie",
    )

    # --- overload: limits on what is in progress. Each is far above what one client has in flight ---

    # More than twice what one writer may have waiting: a greedy one is held before its neighbours have to wait. Adds
    # in progress are in the journal's queue, whose bytes have a limit of their own.
    adds_in_progress_max: int = knob(
        50_000,
        "Largest number of unanswered adds over all connections. At the limit, the bookie stops reading from "
        "connections that send adds.",
        within=(1, 1_000_000),
        bookkeeper="maxAddsInProgressLimit",
    )
    # Several times what one reader may have waiting, for the same reason. A slow one has that many for long.
    reads_in_progress_max: int = knob(
        50_000,
        "Largest number of unanswered reads over all connections. At the limit, the bookie stops reading from "
        "connections that send reads.",
        within=(1, 1_000_000),
        bookkeeper="maxReadsInProgressLimit",
    )
    # Several times what a writer keeps in flight, but below `adds_in_progress_max`: otherwise it is never reached.
    pending_adds_per_writer_max: int = knob(
        20_000,
        "Largest number of unanswered adds of one writer. At the limit, the bookie stops reading from its connection.",
        within=(1, 1_000_000),
        bookkeeper="maxPendingAddRequestsPerThread",
    )
    # Apache's client takes a refusal for a failed bookie, and gives up an add by itself after five seconds.
    pending_adds_per_writer_wait_ms: int = knob(
        2_500,
        "Milliseconds that a writer stays paused at `pending_adds_per_writer_max`. After that, its further adds are "
        "answered with `too many requests`, and the client uses another bookie.",
        within=(0, 600_000),
    )
    pending_reads_per_reader_max: int = knob(
        10_000,
        "Largest number of unanswered reads of one reader. Further reads are answered with `too many requests`, and "
        "the client uses another bookie.",
        within=(1, 1_000_000),
        bookkeeper="maxPendingReadRequestsPerThread",
    )
    # A few kilobytes each, and nothing else: they are not reads in progress. A tailing reader has one at each bookie of
    # the ledger that it follows, so this is also a number of readers.
    long_polls_waiting_max: int = knob(
        50_000,
        "Number of readers, over all connections, that may wait for new entries of a ledger. Further ones are "
        "answered with `too many requests`, and the client uses another bookie.",
        within=(1, 1_000_000),
    )
    # About half a kilobyte each. One read of a socket may name some thousands: with fewer, they are loaded in turns.
    ledgers_in_memory_max: int = knob(
        50_000,
        "Number of ledgers whose key, fence and last confirmed entry are kept in memory. At the limit, idle ledgers "
        "are dropped and loaded again when they are used.",
        within=(20_000, 10_000_000),
    )
    # Several hundred connections that are held with a full read each, or 25 of the largest frames at once.
    receive_bytes_max: int = knob(
        128 * 2**20,
        "Memory in bytes, over all connections, for requests that are incomplete or waiting. At the limit, the bookie "
        "stops reading large incomplete requests until others are finished.",
        within=(2**16, 2**40),
    )
    # Far longer than a client of BookKeeper waits for an answer.
    frame_timeout_ms: int = knob(
        30_000,
        "Milliseconds without further data after which a connection with an incomplete request is closed.",
        within=(10, 3_600_000),
    )
    # A client of BookKeeper gives up an add or a read after five seconds: later answers are of no use to it.
    unwritable_wait_ms: int = knob(
        5_000,
        "Milliseconds that responses wait for a client that reads nothing. After that, they are dropped and counted.",
        within=(0, 3_600_000),
        bookkeeper="waitTimeoutOnResponseBackpressureMs",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        self._check_names()
        self._check_dirs()
        if self.disk_usage_low_water_mark_percent > self.disk_usage_threshold_percent:
            raise ConfigError(
                f"bookie.disk_usage_low_water_mark_percent is {self.disk_usage_low_water_mark_percent}, above "
                f"bookie.disk_usage_threshold_percent {self.disk_usage_threshold_percent}: "
                "a bookie that becomes read-only could become writable again at once; lower the mark"
            )
        if self.disk_usage_warn_percent > self.disk_usage_threshold_percent:
            raise ConfigError(
                f"bookie.disk_usage_warn_percent is {self.disk_usage_warn_percent}, above "
                f"bookie.disk_usage_threshold_percent {self.disk_usage_threshold_percent}: lower the first"
            )

    def _check_names(self) -> None:
        if not self.advertised_host and self.listen_host in ALL_INTERFACES:
            raise ConfigError(
                f"bookie.listen_host {self.listen_host} means all interfaces, which no client can connect to: "
                "set bookie.advertised_host to the name by which other machines reach this one"
            )
        if self.bookie_id:
            try:
                bookie_id(self.bookie_id)
            except ValueError as error:
                raise ConfigError(f"bookie.bookie_id: {error}") from None
            return
        if ":" in self.reached_at:
            raise ConfigError(
                f"bookie.advertised_host {self.reached_at!r} has a colon, which makes host:port ambiguous: "
                "use a host name, or set bookie.bookie_id"
            )
        try:
            bookie_id(self.reached_at)
        except ValueError:
            raise ConfigError(f"bookie.advertised_host: {self.reached_at!r} is not a host name") from None

    def _check_dirs(self) -> None:
        if not self.dir and not (self.journal_dirs and self.ledger_dirs):
            raise ConfigError("bookie.dir is empty: set it, or set both bookie.journal_dirs and bookie.ledger_dirs")
        for name in ("journal_dirs", "ledger_dirs"):
            value = getattr(self, name)
            if value and not all(part.strip() for part in value.split(",")):
                raise ConfigError(f"bookie.{name}: {value!r} has an empty name between commas: remove the extra comma")

    @property
    def listens_on(self) -> str:
        """The address to give to `create_server`."""
        return self.listen_host or (ALL_INTERFACES[0] if self.advertised_host else LOCAL_HOST)

    @property
    def reached_at(self) -> str:
        """The host to which clients connect."""
        return self.advertised_host or self.listens_on
