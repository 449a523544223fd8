"""The read cache: bounded, by use, and only of the ledger that was asked for."""

from __future__ import annotations

from magnetar.storage.entry_log.format import BLOCK_HEADER_BYTES, ENTRIES, decode_block, encode_block
from magnetar.storage.reads import LedgerRun, ReadCache, ledger_run
from tests.unit.storage.samples import chunk_of, entry_bytes


def run_of(ledger_id: int, entries: range, size: int = 100) -> LedgerRun:
    data = b"".join(bytes([entry % 251]) * size for entry in entries)
    return LedgerRun(ledger_id, data, list(entries), list(range(0, len(data), size)), [size] * len(entries))


def held(cache: ReadCache, ledger_id: int, entries: range) -> list[int]:
    return [entry for entry in entries if cache.get(ledger_id, entry) is not None]


def test_entry_comes_back() -> None:
    cache = ReadCache(100_000)
    cache.put(run_of(7, range(5)))
    found = cache.get(7, 3)
    assert found is not None
    assert bytes(found) == bytes([3]) * 100
    assert cache.get(7, 5) is None
    assert cache.get(8, 3) is None


def test_bound_holds_and_what_was_used_last_stays() -> None:
    cache = ReadCache(3 * 2500)
    for ledger in range(3):
        cache.put(run_of(ledger, range(10)))
    cache.get(0, 5)
    cache.put(run_of(3, range(10)))
    assert [bool(held(cache, ledger, range(10))) for ledger in range(4)] == [True, False, True, True]
    assert cache.bytes <= 3 * 2500
    assert cache.evictions == 1


def test_entry_in_two_chunks_outlives_the_first() -> None:
    cache = ReadCache(2 * 2500)
    cache.put(run_of(7, range(10)))
    cache.put(run_of(7, range(5, 15)))
    cache.get(7, 12)
    cache.put(run_of(8, range(10)))
    assert held(cache, 7, range(20)) == list(range(5, 15))


def test_dropped_ledger_is_gone_with_its_memory() -> None:
    cache = ReadCache(100_000)
    cache.put(run_of(7, range(10)))
    cache.put(run_of(7, range(5, 15)))
    cache.put(run_of(8, range(10)))
    cache.drop(7)
    cache.drop(9)
    assert held(cache, 7, range(20)) == []
    assert held(cache, 8, range(20)) == list(range(10))
    cache.drop(8)
    assert cache.bytes == 0
    assert cache._locations == {}


def test_more_than_the_bound_is_not_kept() -> None:
    cache = ReadCache(1000)
    cache.put(run_of(7, range(1), 900))
    cache.put(run_of(8, range(1), 5000))
    assert (cache.get(7, 0) is not None, cache.get(8, 0)) == (False, None) or cache.bytes <= 1000
    assert cache.get(8, 0) is None


def test_run_ends_where_the_ledger_does_and_keeps_little_else() -> None:
    bodies = [
        chunk_of([entry_bytes(6, 0, 900), entry_bytes(7, 1), entry_bytes(7, 2)]),
        chunk_of([entry_bytes(7, 3), entry_bytes(8, 0, 900)]),
        chunk_of([entry_bytes(8, 1, 900)]),
        chunk_of([entry_bytes(7, 9)]),
    ]
    data, blocks, offset = b"", [], 0
    for body in bodies:
        data += encode_block(ENTRIES, 1, offset, 1, body) + body
        offset += BLOCK_HEADER_BYTES + len(body)
    offset = 0
    for body in bodies:
        blocks.append(decode_block(data, offset, 1, offset))
        offset += BLOCK_HEADER_BYTES + len(body)
    run = ledger_run(7, data, blocks)
    assert run.entry_ids == [1, 2, 3]
    assert [bytes(run.get(entry) or b"") for entry in (1, 2, 3)] == [entry_bytes(7, entry) for entry in (1, 2, 3)]
    assert len(run.data) < len(data) // 2
    assert ledger_run(9, data, blocks).entry_ids == []


def test_several_at_once_are_the_same_as_one_by_one() -> None:
    cache = ReadCache(1 << 20)
    cache.put(run_of(7, range(10)))
    cache.put(run_of(7, range(20, 30)))
    asked = [0, 25, 3, 99, 29, 10]
    assert cache.get_many(7, asked) == [cache.get(7, entry_id) for entry_id in asked]
    assert cache.get_many(8, asked) == [None] * len(asked)
