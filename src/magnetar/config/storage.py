"""Settings of a bookie's ledger storage: caches, entry logs, tombstones."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """Everything a bookie keeps of ledgers but its journal.

    Per process: bookies may differ. Changes need a restart; files that are there stay readable.
    """

    # Two of them: one takes adds while the other is written out. Larger ones make longer runs per ledger in the logs.
    write_cache_bytes_max: int = knob(
        128 * 2**20,
        "Size of each of the two write caches. A full one is written to an entry log.",
        at_least=4096,
        at_most=64 * 2**30,
        bookkeeper="dbStorage_writeCacheMaxSizeMb",
    )
    # An unflushed entry is in the journal only: this bounds what a restart has to replay when there is little traffic.
    flush_interval_ms: int = knob(
        60_000,
        "A write cache that is not full is written out after this time.",
        at_least=1,
        at_most=3_600_000,
        bookkeeper="flushInterval",
    )
    # Longer than a flush takes on a slow disk, shorter than a client's add timeout.
    max_throttle_ms: int = knob(
        10_000,
        "Adds wait this long for room while both write caches are full; then they are refused.",
        at_least=0,
        at_most=600_000,
        bookkeeper="dbStorage_maxThrottleTimeMs",
    )
    # Pages that were just freed are quicker to write to than ones the kernel has to find, on a virtual machine by far;
    # and writing does not push out of memory what others read.
    log_cached_bytes: int = knob(
        512 * 2**20,
        "Newest bytes of the entry logs that stay in the kernel's page cache; older ones are read from the device.",
        at_least=0,
        at_most=2**50,
    )
    read_cache_bytes_max: int = knob(
        64 * 2**20,
        "Entries read from logs that are kept for the next reader, and those read ahead.",
        at_least=0,
        at_most=64 * 2**30,
        bookkeeper="dbStorage_readAheadCacheMaxSizeMb",
    )
    # Large enough that a disk with seeks is busy reading, small enough that a random read does not wait for it.
    read_ahead_bytes: int = knob(
        256 * 2**10,
        "A read that misses the caches takes this much from the log.",
        at_least=0,
        at_most=8 * 2**20,
        bookkeeper="dbStorage_readAheadCacheBatchBytesSize",
    )
    # Each fetch costs two hand-overs to a thread, whatever its size; who reads in sequence wants all of it.
    read_ahead_bytes_max: int = knob(
        2 * 2**20,
        "Up to this much, for a reader that goes on where the last such read ended.",
        at_least=0,
        at_most=8 * 2**20,
    )
    # The unit of checksum and index: larger ones make the index smaller and random reads dearer.
    block_bytes: int = knob(
        64 * 2**10,
        "Entries are checksummed and indexed in blocks of about this size.",
        at_least=64,
        at_most=8 * 2**20,
    )
    # Compaction copies what is alive in a log and deletes the file, so a log is the unit in which room comes back.
    log_bytes_max: int = knob(
        1 * 2**30,
        "An entry log that would exceed this is finished and the next one begun.",
        at_least=4096,
        at_most=4_000_000_000,
        bookkeeper="logSizeLimit",
    )
    open_logs_max: int = knob(
        256,
        "Entry logs kept open for reading, and so file descriptors.",
        at_least=1,
        at_most=100_000,
    )
    # RocksDB refuses writes once it met a full disk, and is opened again when there is room: better not to meet one.
    index_reserve_bytes: int = knob(
        64 * 2**20,
        "Nothing is flushed while the first ledger directory's device has less room than this: it is the index's.",
        at_least=0,
        at_most=2**40,
    )
    # A writer that was fenced must stay fenced even if its ledger is deleted meanwhile. A week outlives any pause.
    tombstone_days: int = knob(
        7,
        "A deleted ledger that was fenced is remembered as fenced for this long.",
        at_least=7,
        at_most=3650,
    )
    tombstones_max: int = knob(
        1_000_000,
        "Beyond this many remembered ledgers, further fenced ledgers are deleted only when old ones expire.",
        at_least=1,
        at_most=100_000_000,
    )
    # Every round lists the metadata of all ledgers of the cluster, so it is rare.
    gc_interval_ms: int = knob(
        900_000,
        "Time between two looks for ledgers that were deleted, and for logs to remove or to compact.",
        at_least=1,
        at_most=86_400_000,
        bookkeeper="gcWaitTime",
    )
    # Each takes a read of the metadata and a synced write of the index: the rest waits for the next round.
    gc_ledgers_max: int = knob(
        10_000,
        "Ledgers deleted in one round of garbage collection at most.",
        at_least=1,
        at_most=10_000_000,
    )
    minor_compaction_threshold_percent: int = knob(
        20,
        "Minor compaction rewrites logs of which less than this is alive; 0 turns it off.",
        at_least=0,
        at_most=99,
        bookkeeper="minorCompactionThreshold",
    )
    minor_compaction_interval_ms: int = knob(
        3_600_000,
        "Time between two minor compactions.",
        at_least=1,
        at_most=2_592_000_000,
        bookkeeper="minorCompactionInterval",
    )
    # At 80 % a rewrite moves four bytes for each that it frees: worth it once a day, not once an hour.
    major_compaction_threshold_percent: int = knob(
        80,
        "Major compaction rewrites logs of which less than this is alive; 0 turns it off.",
        at_least=0,
        at_most=99,
        bookkeeper="majorCompactionThreshold",
    )
    major_compaction_interval_ms: int = knob(
        86_400_000,
        "Time between two major compactions.",
        at_least=1,
        at_most=2_592_000_000,
        bookkeeper="majorCompactionInterval",
    )
    # A few percent of what a disk can do: a log of 1 GiB takes half a minute, and nobody notices.
    compaction_bytes_per_s: int = knob(
        32 * 2**20,
        "Compaction reads logs no faster than this.",
        at_least=1024,
        at_most=2**40,
        bookkeeper="compactionRateByBytes",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.block_bytes > self.write_cache_bytes_max:
            raise ConfigError("storage: block_bytes exceeds write_cache_bytes_max")
        major = self.major_compaction_threshold_percent
        if major and self.minor_compaction_threshold_percent > major:
            raise ConfigError("storage: minor_compaction_threshold_percent exceeds major_compaction_threshold_percent")
