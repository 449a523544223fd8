"""The ids of a ledger's entries, page by page: a ledger may have millions, and the loop has others to serve.

Complete:  the caches are looked at first. An entry goes from a cache to the index and never back, so whatever is here
           when the listing begins is in it; what comes later may be.
Memory:    the ids that are only in caches, which are bounded, and one page.
Read next: location_index.py
"""

from __future__ import annotations

import asyncio
from bisect import bisect_left
from collections.abc import AsyncIterator, Sequence
from typing import Final

from magnetar.storage.location_index import LocationIndex
from magnetar.storage.write_cache import WriteCache

PAGE_ENTRIES: Final = 10_000  # A millisecond or two.


async def entry_pages(
    index: LocationIndex, caches: Sequence[WriteCache], ledger_id: int, page_entries: int = PAGE_ENTRIES
) -> AsyncIterator[list[int]]:
    lists = [ids for cache in caches if (ids := cache.entry_ids(ledger_id))]
    cached = lists[0] if len(lists) == 1 else sorted({entry_id for ids in lists for entry_id in ids})
    taken = 0
    following: int | None = 0
    while following is not None:
        ids, following = await index.entry_ids(ledger_id, following, page_entries)
        end = len(cached) if following is None else bisect_left(cached, following, taken)
        if end - taken > page_entries:
            end = bisect_left(cached, cached[taken + page_entries], taken)
            following = cached[end]
            ids = ids[: bisect_left(ids, following)]
        if end > taken:
            ids = sorted({*ids, *cached[taken:end]})
            taken = end
        if ids:
            yield ids
        await asyncio.sleep(0)
