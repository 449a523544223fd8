"""Settings of a bookie's disk: its journal, and its ledger storage with caches, entry logs and tombstones."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """The journal, which is the write-ahead log of a bookie.

    Values may differ between bookies. Changes need a restart; files written with other values stay readable.
    """

    file_bytes_max: int = knob(
        256 * 2**20,
        "Size in bytes at which a journal file is finished and the next one is started. A file is deleted only as a "
        "whole.",
        within=(4_096, 2**40),
        bookkeeper="journalMaxSizeMB",
    )
    # A group is what arrived during the last sync: this only bounds it, and thereby the wait of its first record.
    group_bytes_max: int = knob(
        4 * 2**20,
        "Number of bytes that may share one write and one disk sync. A larger record is written on its own.",
        within=(1, 32 * 2**20),
        bookkeeper="journalBufferedWritesThreshold",
    )
    # Zeros filled in ahead make syncs of small groups quicker and cost bandwidth, so none are used for large groups.
    preallocated_bytes: int = knob(
        4 * 2**20,
        "Number of zero bytes written ahead at a time, which makes small syncs faster. Used while the average write "
        "is smaller than 1/128 of this value; 0 turns it off.",
        within=(0, 2**30),
        bookkeeper="journalPreAllocSizeMB",
    )
    # Overwriting is cheaper than growing: a group's sync has no metadata to write, and no new pages are needed.
    spare_files_max: int = knob(
        2,
        "Number of old journal files that are kept and overwritten instead of creating new files. 0: none.",
        within=(0, 1_000),
        bookkeeper="journalReuseFiles",
    )
    # A record is a run of adds from one read of a socket, so this many records are far more adds.
    queue_entries_max: int = knob(
        10_000,
        "Number of records that may be waiting for the journal or being written. At the limit, writers wait.",
        within=(1, 10_000_000),
        bookkeeper="journalQueueSize",
    )
    # The chunks are the write cache's as well: this bounds the time to drain, more than the memory.
    queue_bytes_max: int = knob(
        64 * 2**20,
        "Number of bytes that may be waiting for the journal or being written. At the limit, writers wait.",
        within=(1, 2**40),
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.group_bytes_max > self.file_bytes_max:
            raise ConfigError(
                "journal.group_bytes_max exceeds journal.file_bytes_max: lower the first or raise the second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageConfig:
    """The ledger storage of a bookie: caches, entry logs, index, garbage collection and compaction.

    Values may differ between bookies. Changes need a restart; existing files stay readable. An *add* is a
    request to store one entry.
    """

    # Two of them: one takes adds while the other is written out. Larger ones make longer runs per ledger in the logs.
    write_cache_bytes_max: int = knob(
        128 * 2**20,
        "Size in bytes of each of the two write caches. A full write cache is flushed to an entry log.",
        within=(4096, 64 * 2**30),
        bookkeeper="dbStorage_writeCacheMaxSizeMb",
    )
    # An unflushed entry is in the journal only: this bounds what a restart has to replay when there is little traffic.
    flush_interval_ms: int = knob(
        60_000,
        "Milliseconds after which a write cache is flushed even if it is not full.",
        within=(1, 3_600_000),
        bookkeeper="flushInterval",
    )
    # Longer than a flush takes on a slow disk, shorter than a client's add timeout.
    max_throttle_ms: int = knob(
        10_000,
        "Milliseconds that adds wait for space while both write caches are full. After that, they are refused.",
        within=(0, 600_000),
        bookkeeper="dbStorage_maxThrottleTimeMs",
    )
    # Pages that were just freed are quicker to write to than ones the kernel has to find, on a virtual machine by far;
    # and writing does not push out of memory what others read.
    log_cached_bytes: int = knob(
        512 * 2**20,
        "Number of most recently written entry-log bytes that stay in the kernel's page cache. Older data is read "
        "from the disk.",
        within=(0, 2**50),
    )
    read_cache_bytes_max: int = knob(
        64 * 2**20,
        "Size in bytes of the cache for entries that were read, or read ahead, from entry logs.",
        within=(0, 64 * 2**30),
        bookkeeper="dbStorage_readAheadCacheMaxSizeMb",
    )
    # Large enough that a disk with seeks is busy reading, small enough that a random read does not wait for it.
    read_ahead_bytes: int = knob(
        256 * 2**10,
        "Number of bytes to read from an entry log when an entry is in no cache.",
        within=(0, 8 * 2**20),
        bookkeeper="dbStorage_readAheadCacheBatchBytesSize",
    )
    # Each fetch costs two hand-overs to a thread, whatever its size; a sequential reader needs all of it.
    read_ahead_bytes_max: int = knob(
        2 * 2**20,
        "Largest number of bytes to read from an entry log at once for a sequential reader, which continues where the "
        "previous read ended.",
        within=(0, 8 * 2**20),
    )
    # The unit of checksum and index: larger ones make the index smaller and random reads dearer.
    block_bytes: int = knob(
        64 * 2**10,
        "Approximate size in bytes of a block: entries are checksummed and indexed block by block.",
        within=(64, 8 * 2**20),
    )
    # Compaction copies the live entries of a log and deletes the file, so room comes back in units of a log.
    log_bytes_max: int = knob(
        1 * 2**30,
        "Largest size in bytes of an entry log. When the next block does not fit, a new entry log is started.",
        within=(4096, 4_000_000_000),
        bookkeeper="logSizeLimit",
    )
    open_logs_max: int = knob(
        256, "Number of entry logs kept open for reading. Each one uses a file descriptor.", within=(1, 100_000)
    )
    # RocksDB refuses writes after the disk was full, and must be opened again: better to stop before that.
    index_reserve_bytes: int = knob(
        64 * 2**20,
        "Free bytes reserved for the index on the device of the first ledger directory. With less free space than "
        "this, write caches are not flushed.",
        within=(0, 2**40),
    )
    # A writer that was fenced must stay fenced even if its ledger is deleted. A week outlives any pause.
    tombstone_days: int = knob(
        7, "Days for which a bookie remembers that a deleted ledger was fenced.", within=(7, 3650)
    )
    tombstones_max: int = knob(
        1_000_000,
        "Number of deleted ledgers that a bookie remembers as fenced. At the limit, the fences of further ones are "
        "kept as if the ledgers still existed, until old ones expire.",
        within=(1, 100_000_000),
    )
    # Every round lists the metadata of all ledgers of the cluster, so it is rare.
    gc_interval_ms: int = knob(
        900_000,
        "Milliseconds between two rounds of garbage collection, which removes deleted ledgers and finds entry logs to "
        "delete or to compact.",
        within=(1, 86_400_000),
        bookkeeper="gcWaitTime",
    )
    # Each takes a read of the metadata and a synced write of the index: the rest waits for the next round.
    gc_ledgers_max: int = knob(
        10_000,
        "Number of ledgers that one round of garbage collection may delete. The others wait for the next round.",
        within=(1, 10_000_000),
    )
    minor_compaction_threshold_percent: int = knob(
        20,
        "Minor compaction rewrites entry logs in which less than this percentage is still in use. 0 turns it off.",
        within=(0, 99),
        bookkeeper="minorCompactionThreshold",
    )
    minor_compaction_interval_ms: int = knob(
        3_600_000,
        "Milliseconds between two minor compactions.",
        within=(1, 2_592_000_000),
        bookkeeper="minorCompactionInterval",
    )
    # At 80 % a rewrite moves four bytes for each that it frees: worth it once a day, not once an hour.
    major_compaction_threshold_percent: int = knob(
        80,
        "Major compaction rewrites entry logs in which less than this percentage is still in use. 0 turns it off.",
        within=(0, 99),
        bookkeeper="majorCompactionThreshold",
    )
    major_compaction_interval_ms: int = knob(
        86_400_000,
        "Milliseconds between two major compactions.",
        within=(1, 2_592_000_000),
        bookkeeper="majorCompactionInterval",
    )
    # A few percent of what a disk can do: a log of 1 GiB takes half a minute, without an effect on clients.
    compaction_bytes_per_s: int = knob(
        32 * 2**20,
        "Number of bytes per second that compaction may read from entry logs.",
        within=(1024, 2**40),
        bookkeeper="compactionRateByBytes",
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.block_bytes > self.write_cache_bytes_max:
            raise ConfigError(
                "storage.block_bytes exceeds storage.write_cache_bytes_max: lower the first or raise the second"
            )
        major = self.major_compaction_threshold_percent
        if major and self.minor_compaction_threshold_percent > major:
            raise ConfigError(
                "storage.minor_compaction_threshold_percent exceeds storage.major_compaction_threshold_percent: "
                "lower the first or raise the second"
            )
