"""Reads of missing entries: after the end of a ledger, where recovery and tailing readers ask."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from magnetar.errors import EntryMissingError
from magnetar.storage.index.extents import Extent
from magnetar.storage.ledger_storage import LedgerStorage
from tests.unit.storage.samples import add, entry_bytes, real_storage, small_config


async def filled(tmp_path: Path) -> LedgerStorage:
    config = small_config(block_bytes=4096, read_ahead_bytes=65536, read_cache_bytes_max=1 << 20, log_bytes_max=1 << 30)
    storage = await real_storage(tmp_path, config)
    add(storage, [entry_bytes(7, entry, 100) for entry in range(200)])
    await storage.flush()
    await storage.get_entry(7, 150)  # From here on a read-ahead is expected to bring the next ones along.
    return storage


async def test_absent_entries_do_not_wait_for_each_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    storage = await filled(tmp_path)
    index = storage._reads._index
    find, under_way, most = index.find, 0, 0

    async def counted(ledger_id: int, entry_id: int) -> Extent | None:
        nonlocal under_way, most
        under_way += 1
        most = max(most, under_way)
        try:
            return await find(ledger_id, entry_id)
        finally:
            under_way -= 1

    monkeypatch.setattr(index, "find", counted)
    asked = [storage.get_entry(7, entry) for entry in [*range(200, 216), *range(200, 216)]]
    found = await asyncio.gather(*asked, return_exceptions=True)
    assert all(isinstance(error, EntryMissingError) for error in found)
    assert most >= 16  # One after the other it would be 1.
    assert storage._reads._fetching == {}
    await storage.aclose()


async def test_entries_before_the_end_are_found_beside_absent_ones(tmp_path: Path) -> None:
    storage = await filled(tmp_path)
    found = await asyncio.gather(*(storage.get_entry(7, entry) for entry in range(190, 210)), return_exceptions=True)
    assert [bytes(entry) for entry in found[:10]] == [entry_bytes(7, entry, 100) for entry in range(190, 200)]  # type: ignore[arg-type]
    assert all(isinstance(error, EntryMissingError) for error in found[10:])
    assert storage._reads._fetching == {}
    await storage.aclose()
