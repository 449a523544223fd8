"""Settings of a bookie's journal."""

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
        at_least=4_096,
        at_most=2**40,
        bookkeeper="journalMaxSizeMB",
    )
    # A group is what arrived during the last sync: this only bounds it, and thereby the wait of its first record.
    group_bytes_max: int = knob(
        4 * 2**20,
        "Number of bytes that may share one write and one disk sync. A larger record is written on its own.",
        at_least=1,
        at_most=32 * 2**20,
        bookkeeper="journalBufferedWritesThreshold",
    )
    # Zeros filled in ahead make syncs of small groups quicker and cost bandwidth, so none are used for large groups.
    preallocated_bytes: int = knob(
        4 * 2**20,
        "Number of zero bytes written ahead at a time, which makes small syncs faster. Used while the average write "
        "is smaller than 1/128 of this value; 0 turns it off.",
        at_least=0,
        at_most=2**30,
        bookkeeper="journalPreAllocSizeMB",
    )
    # Overwriting is cheaper than growing: a group's sync has no metadata to write, and no new pages are needed.
    spare_files_max: int = knob(
        2,
        "Number of old journal files that are kept and overwritten instead of creating new files. 0: none.",
        at_least=0,
        at_most=1_000,
        bookkeeper="journalReuseFiles",
    )
    # A record is a run of adds from one read of a socket, so this many records are far more adds.
    queue_entries_max: int = knob(
        10_000,
        "Number of records that may be waiting for the journal or being written. At the limit, writers wait.",
        at_least=1,
        at_most=10_000_000,
        bookkeeper="journalQueueSize",
    )
    # The chunks are the write cache's as well: this bounds the time to drain, more than the memory.
    queue_bytes_max: int = knob(
        64 * 2**20,
        "Number of bytes that may be waiting for the journal or being written. At the limit, writers wait.",
        at_least=1,
        at_most=2**40,
    )

    def __post_init__(self) -> None:
        check_knobs(self)
        if self.group_bytes_max > self.file_bytes_max:
            raise ConfigError(
                "journal.group_bytes_max exceeds journal.file_bytes_max: lower the first or raise the second"
            )
