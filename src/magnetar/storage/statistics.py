"""A snapshot of a ledger storage's counters, for metrics and tests."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class StorageStatistics:
    mark: int
    write_cache_bytes: int
    write_cache_entries: int
    flushing_bytes: int
    flushes: int
    read_cache_bytes: int
    log_reads: int
    log_bytes_read: int
    logs: int
    tombstones: int
