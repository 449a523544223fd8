"""The write cache against a plain dict, and the shape of what a flush gets from it."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from magnetar.storage.frames import ENTRY_OFFSET, add_frame, by_ledger
from magnetar.storage.write_cache import WriteCache
from magnetar.wire.bookkeeper.hot_path import scan_adds
from tests.unit.storage.samples import KEY, chunk_of, entry_bytes

ENTRY = st.tuples(st.integers(0, 3), st.integers(0, 12) | st.just((1 << 63) - 1), st.integers(0, 300))
CHUNKS = st.lists(st.lists(ENTRY, min_size=1, max_size=12), max_size=8)


def put(cache: WriteCache, entries: list[bytes], *, at_once: bool = False) -> None:
    chunk = chunk_of(entries)
    run = scan_adds(chunk, 0, len(chunk))
    stretches = by_ledger(run)
    if at_once:
        ledger_ids = [ledger_id for ledger_id, first, end in stretches for _ in range(first, end)]
        cache.put_many(ledger_ids, chunk, run.entry_ids, run.offsets, run.lengths)
        return
    for ledger_id, first, end in stretches:
        cache.put_run(ledger_id, chunk, run.entry_ids[first:end], run.offsets[first:end], run.lengths[first:end])


@given(chunks=CHUNKS, at_once=st.booleans(), run_bytes=st.integers(1, 2000), dropped=st.none() | st.integers(0, 3))
def test_cache_behaves_as_a_dict_of_entries(
    chunks: list[list[tuple[int, int, int]]], at_once: bool, run_bytes: int, dropped: int | None
) -> None:
    cache = WriteCache()
    model: dict[tuple[int, int], bytes] = {}
    for number, chunk in enumerate(chunks):
        entries = [entry_bytes(ledger, entry, size, salt=number) for ledger, entry, size in chunk]
        put(cache, entries, at_once=at_once)
        model.update({(ledger, entry): data for (ledger, entry, _), data in zip(chunk, entries, strict=True)})
    if dropped is not None:
        cache.drop(dropped)
        model = {place: entry for place, entry in model.items() if place[0] != dropped}
    for ledger in range(5):
        ids = sorted(entry for known, entry in model if known == ledger)
        assert cache.entry_ids(ledger) == ids
        assert cache.last_entry(ledger) == (ids[-1] if ids else None)
        for entry in (*range(-1, 14), (1 << 63) - 1):
            found = cache.get(ledger, entry)
            assert (None if found is None else bytes(found)) == model.get((ledger, entry))
    check_runs(cache, model, run_bytes)


def check_runs(cache: WriteCache, model: dict[tuple[int, int], bytes], run_bytes: int) -> None:
    """All runs one after the other are all entries' frames, sorted."""
    runs = list(cache.runs(run_bytes))
    frames = b"".join(view for run in runs for view in run.frames)
    assert frames == b"".join(add_frame(KEY, model[place]) for place in sorted(model))
    assert [(run.ledger_id, entry) for run in runs for entry in run.entry_ids] == sorted(model)
    for run in runs:
        assert run.frames_bytes == sum(len(view) for view in run.frames)
        before_last = run.frames_bytes - len(model[run.ledger_id, run.entry_ids[-1]]) - ENTRY_OFFSET
        assert before_last < run_bytes


def test_neighbours_in_one_chunk_are_one_view() -> None:
    cache = WriteCache()
    put(cache, [entry_bytes(7, entry) for entry in range(100)])
    put(cache, [entry_bytes(7, entry) for entry in range(100, 200)])
    (run,) = cache.runs(1 << 20)
    assert [len(view) for view in run.frames] == [run.frames_bytes // 2] * 2


def test_entries_that_came_with_others_between_them_are_views_of_their_own() -> None:
    cache = WriteCache()
    put(cache, [entry_bytes(ledger, entry) for entry in range(100) for ledger in (7, 8)], at_once=True)
    runs = list(cache.runs(1 << 20))
    assert [(run.ledger_id, run.entry_ids, len(run.frames)) for run in runs] == [
        (ledger, list(range(100)), 100) for ledger in (7, 8)
    ]
    check_runs(cache, {(ledger, entry): entry_bytes(ledger, entry) for ledger in (7, 8) for entry in range(100)}, 999)


def test_entries_that_came_one_behind_the_other_but_stand_apart_are_not_one_view() -> None:
    """The frames between them were never put into this cache."""
    cache = WriteCache()
    entries = [entry_bytes(7, entry) for entry in range(5)]
    chunk = chunk_of(entries)
    run = scan_adds(chunk, 0, len(chunk))
    cache.put_run(7, chunk, run.entry_ids[::2], run.offsets[::2], run.lengths[::2])
    (kept,) = cache.runs(1 << 20)
    assert b"".join(kept.frames) == chunk_of(entries[::2])


def test_last_entry_of_a_chunk_and_first_of_the_next_are_never_one_view() -> None:
    """Offsets may fit by accident: the chunk's number is a part of what is compared."""
    cache = WriteCache()
    first = chunk_of([entry_bytes(7, 0)])
    second = b"x" * len(first) + chunk_of([entry_bytes(7, 1)])
    cache.put_run(7, first, [0], [ENTRY_OFFSET], [len(first) - ENTRY_OFFSET])
    cache.put_run(7, second, [1], [len(first) + ENTRY_OFFSET], [len(first) - ENTRY_OFFSET])
    (run,) = cache.runs(1 << 20)
    assert b"".join(run.frames) == first + second[len(first) :]


def test_entry_put_again_replaces_the_one_before() -> None:
    cache = WriteCache()
    put(cache, [entry_bytes(7, 0, salt=1), entry_bytes(7, 0, salt=2)])
    put(cache, [entry_bytes(7, 0, salt=3)])
    found = cache.get(7, 0)
    assert found is not None
    assert bytes(found) == entry_bytes(7, 0, salt=3)
    assert cache.entries == 3


def test_bytes_count_a_chunk_once_and_the_bookkeeping_of_each_entry() -> None:
    cache = WriteCache()
    entries = [entry_bytes(ledger, 0) for ledger in range(10)]
    put(cache, entries)
    assert len(chunk_of(entries)) < cache.bytes < len(chunk_of(entries)) + 10 * 200


def test_memory_in_use_is_not_more_than_what_is_counted() -> None:
    import tracemalloc

    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    cache = WriteCache()
    for first in range(0, 100_000, 100):
        put(cache, [entry_bytes(first % 7, entry, 20) for entry in range(first, first + 100)])
    used = tracemalloc.get_traced_memory()[0] - before
    tracemalloc.stop()
    assert used < cache.bytes * 1.1


def test_large_entries_have_room_in_a_location() -> None:
    cache = WriteCache()
    big = [entry_bytes(7, entry, 5 * 2**20) for entry in range(3)]
    put(cache, big[:1])
    chunk = chunk_of(big[1:])
    run = scan_adds(chunk, 0, len(chunk), 6 * 2**20)
    cache.put_run(7, chunk, run.entry_ids, run.offsets, run.lengths)
    assert [bytes(cache.get(7, entry) or b"") for entry in range(3)] == big
