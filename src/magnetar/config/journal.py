"""Settings of a bookie's journal."""

from __future__ import annotations

from dataclasses import dataclass

from magnetar.config.knobs import check_knobs, knob
from magnetar.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalConfig:
    """The write-ahead log of a bookie.

    Bookies may differ, and values may change on restart: files written with other values are read all the same.
    """

    file_bytes_max: int = knob(
        256 * 2**20,
        "A new file begins beyond this size; files are removed whole.",
        at_least=4_096,
        at_most=2**40,
        bookkeeper="journalMaxSizeMB",
    )
    # A group is what arrived during the last sync: this only bounds it, and so how long its first record waits.
    group_bytes_max: int = knob(
        4 * 2**20,
        "Bytes that share one write and one sync; a larger record goes alone.",
        at_least=1,
        at_most=32 * 2**20,
        bookkeeper="journalBufferedWritesThreshold",
    )
    # Zeros filled in ahead make syncs of small groups quicker and cost bandwidth, so large groups do without.
    preallocated_bytes: int = knob(
        4 * 2**20,
        "Bytes of zeros filled in ahead at a time, while groups are less than 1/128 of this; 0: never.",
        at_least=0,
        at_most=2**30,
        bookkeeper="journalPreAllocSizeMB",
    )
    # Overwriting is cheaper than growing: a group's sync has no metadata to write, and no new pages are needed.
    spare_files_max: int = knob(
        2,
        "Files that are no longer needed and kept to be written again, instead of new ones; 0: none.",
        at_least=0,
        at_most=1_000,
        bookkeeper="journalReuseFiles",
    )
    # A record is a run of adds from one read of a socket, so this many are far more adds.
    queue_entries_max: int = knob(
        10_000,
        "Records that wait or are being written; beyond this, writers wait.",
        at_least=1,
        at_most=10_000_000,
        bookkeeper="journalQueueSize",
    )
    # The chunks are the write cache's as well: this bounds the time to drain, more than the memory.
    queue_bytes_max: int = knob(
        64 * 2**20,
        "Bytes that wait or are being written; beyond this, writers wait.",
        at_least=1,
        at_most=2**40,
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.group_bytes_max > self.file_bytes_max:
            raise ConfigError(
                "JournalConfig: group_bytes_max exceeds file_bytes_max; lower the first or raise the other"
            )
