"""Settings of a storage node: who and where it is, how full its disks may be, how much it takes on at once."""

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
    """The storage node.

    Bookies may differ in everything. What is part of a bookie's cookie (id, or host and port; directories) stays as it
    was on its first start; the other values may change on restart.
    """

    dir: str = knob(
        "magnetar-data/bookie",
        "Where the bookie keeps everything: `journal` and `ledgers` below it, unless these are named.",
    )
    journal_dirs: str = knob(
        "",
        "Directories of the write-ahead log, separated by commas; a device of its own is best. Empty: below `dir`.",
        bookkeeper="journalDirectories",
    )
    ledger_dirs: str = knob(
        "",
        "Directories of the entry logs and of the index, separated by commas. Empty: below `dir`.",
        bookkeeper="ledgerDirectories",
    )
    port: int = knob(
        3181,
        "Where clients connect. 0: the system chooses once; the port is kept with the data and used again.",
        at_least=0,
        at_most=65_535,
        bookkeeper="bookiePort",
    )
    listen_host: str = knob(
        "",
        "The address to listen on. Empty: every interface if `advertised_host` is set, else only this machine, because "
        "a bookie does not ask its clients who they are.",
        bookkeeper="listeningInterface",
    )
    advertised_host: str = knob(
        "",
        "The name or address under which other machines reach this bookie; set it, and it is a node of a cluster. "
        "Empty: what it listens on.",
        bookkeeper="advertisedAddress",
    )
    bookie_id: str = knob(
        "",
        "The name that the metadata of ledgers refers to, for ever. Empty: `host:port` as advertised.",
        bookkeeper="bookieId",
    )
    http_port: int = knob(
        0,
        "Where `/metrics` and `/health` are. 0: any that is free, named in the line printed when ready; -1: nowhere.",
        at_least=NO_HTTP,
        at_most=65_535,
        bookkeeper="httpServerPort",
    )

    # --- disks ---

    disk_usage_threshold_percent: int = knob(
        95,
        "A bookie with a directory on a device fuller than this takes no more entries: it turns read-only.",
        at_least=1,
        at_most=99,
        bookkeeper="diskUsageThreshold",
    )
    # Apache's default equals its threshold; there a bookie near it changes its mind at every check.
    disk_usage_low_water_mark_percent: int = knob(
        90,
        "Below this on every device, a bookie that had turned read-only takes entries again.",
        at_least=1,
        at_most=99,
        bookkeeper="diskUsageLwmThreshold",
    )
    disk_usage_warn_percent: int = knob(
        90,
        "Above this a warning is logged.",
        at_least=1,
        at_most=99,
        bookkeeper="diskUsageWarnThreshold",
    )
    disk_check_interval_ms: int = knob(
        10_000, "How often the disks are measured.", at_least=10, at_most=3_600_000, bookkeeper="diskCheckInterval"
    )
    # One entry log and a little more: compaction writes a new log before it removes the old one.
    disk_reserve_compaction_bytes: int = knob(
        1_200 * 2**20,
        "A read-only bookie goes on compacting, which gives room back, while it has more room than this.",
        at_least=0,
        at_most=2**50,
        bookkeeper="minUsableSizeForEntryLogCreation",
    )
    disk_reserve_high_priority_bytes: int = knob(
        1_200 * 2**20,
        "A read-only bookie still takes the entries of recovery and re-replication while it has more room than this.",
        at_least=0,
        at_most=2**50,
        bookkeeper="minUsableSizeForHighPriorityWrites",
    )
    read_only_mode_enabled: bool = knob(
        True, "On a full disk turn read-only; if false, stop instead.", bookkeeper="readOnlyModeEnabled"
    )
    force_read_only: bool = knob(
        False, "Start read-only and stay so, whatever the disks or an operator say.", bookkeeper="forceReadOnlyBookie"
    )

    # --- overload: what is taken on at once. Each limit is far above what one client has in flight ---

    # More than twice what one writer may have waiting: a greedy one is held before its neighbours have to wait. What
    # is in progress lies in the journal's queue, whose bytes have a limit of their own.
    adds_in_progress_max: int = knob(
        50_000,
        "Adds of all connections that are not answered yet; at the limit, connections that bring adds are not read.",
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxAddsInProgressLimit",
    )
    # Several times what one reader may have waiting, for the same reason. A slow one has that many for long.
    reads_in_progress_max: int = knob(
        50_000,
        "Reads of all connections that are not answered yet; at the limit, connections that bring reads are not read.",
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxReadsInProgressLimit",
    )
    # Several times what a writer keeps in flight, but below `adds_in_progress_max`: else it was never met.
    pending_adds_per_writer_max: int = knob(
        20_000,
        "Adds waiting for one writer; at the limit its connection is not read.",
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxPendingAddRequestsPerThread",
    )
    # Apache's client takes a refusal for a failed bookie, and gives up an add by itself after five seconds.
    pending_adds_per_writer_wait_ms: int = knob(
        2_500,
        "How long a writer with that many adds waiting is not read; then further ones are answered "
        "`too many requests`, and the client goes elsewhere.",
        at_least=0,
        at_most=600_000,
    )
    pending_reads_per_reader_max: int = knob(
        10_000,
        "Reads waiting for one reader; further ones are answered `too many requests`, and the client goes elsewhere.",
        at_least=1,
        at_most=1_000_000,
        bookkeeper="maxPendingReadRequestsPerThread",
    )
    # A few kilobytes each, and nothing else: they are no reads in progress. A tailing reader has one at each bookie of
    # its ledger that it follows, so these are as many readers.
    long_polls_waiting_max: int = knob(
        50_000,
        "Readers that wait for new entries of their ledger, of all connections; further ones are answered "
        "`too many requests`, and the client goes elsewhere.",
        at_least=1,
        at_most=1_000_000,
    )
    # About half a kilobyte each. One read of a socket may name some thousands, which must all be there at once.
    ledgers_in_memory_max: int = knob(
        50_000,
        "Ledgers of which key, fence and LAC are kept in memory; beyond this idle ones are let go, and loaded again "
        "when they are asked for.",
        at_least=20_000,
        at_most=10_000_000,
    )
    # A client of BookKeeper gives up an add or a read after five seconds: later answers are of no use to it.
    unwritable_wait_ms: int = knob(
        5_000,
        "How long answers wait for a client that reads nothing; then they are dropped and counted.",
        at_least=0,
        at_most=3_600_000,
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
                "a bookie that turns read-only could turn back at once; lower the mark"
            )
        if self.disk_usage_warn_percent > self.disk_usage_threshold_percent:
            raise ConfigError(
                f"bookie.disk_usage_warn_percent is {self.disk_usage_warn_percent}, above "
                f"bookie.disk_usage_threshold_percent {self.disk_usage_threshold_percent}: warn earlier"
            )

    def _check_names(self) -> None:
        if not self.advertised_host and self.listen_host in ALL_INTERFACES:
            raise ConfigError(
                f"bookie.listen_host {self.listen_host} is every interface, which is nowhere to connect to: "
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
                f"bookie.advertised_host {self.reached_at!r} has a colon, so host:port would not be clear to clients: "
                "use a host name, or set bookie.bookie_id"
            )
        try:
            bookie_id(self.reached_at)
        except ValueError:
            raise ConfigError(f"bookie.advertised_host: {self.reached_at!r} is not the name of a host") from None

    def _check_dirs(self) -> None:
        if not self.dir and not (self.journal_dirs and self.ledger_dirs):
            raise ConfigError("bookie.dir is empty: name a directory, or both bookie.journal_dirs and ledger_dirs")
        for name in ("journal_dirs", "ledger_dirs"):
            value = getattr(self, name)
            if value and not all(part.strip() for part in value.split(",")):
                raise ConfigError(f"bookie.{name}: {value!r} names an empty directory between its commas")

    @property
    def listens_on(self) -> str:
        """The address to give to `create_server`."""
        return self.listen_host or (ALL_INTERFACES[0] if self.advertised_host else LOCAL_HOST)

    @property
    def reached_at(self) -> str:
        """The host that clients are told."""
        return self.advertised_host or self.listens_on
