"""Streams: who reads a ledger in sequence gets more with each fetch, so that a fast reader waits for fewer of them.

Growth:    a fetch that begins where the last one of its ledger ended takes twice as much, up to `ahead_max`. Any other
           one begins with `ahead_min` again: a random read must not wait for what nobody wants.
Share:     all streams together take at most half of the read cache; else they would push out what the others have
           fetched and not yet asked for.
Bound:     STREAMS_MAX ledgers are remembered; the one that was quiet for the longest time goes first.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import Final, NamedTuple

STREAMS_MAX: Final = 1_000
_ENTRIES_UNKNOWN: Final = 256  # Of a fetch that nothing is known about.


class _Stream(NamedTuple):
    following: int
    """The entry that a reader in sequence asks for next."""
    ahead_bytes: int
    entries: int
    """That the last fetch brought."""


class Fetched(NamedTuple):
    ahead_bytes: int
    entries: int


class Streams:
    def __init__(self, ahead_min: int, ahead_max: int, cache_bytes: int) -> None:
        self._ahead_min = ahead_min
        self._ahead_max = ahead_max
        self._cache_bytes = cache_bytes
        self._streams: OrderedDict[int, _Stream] = OrderedDict()

    def __len__(self) -> int:
        return len(self._streams)

    def begin(self, ledger_id: int, entry_id: int) -> Fetched:
        """How much to read for this entry, and how many entries that is likely to bring."""
        stream = self._streams.get(ledger_id)
        if stream is None or stream.following != entry_id:
            return Fetched(self._ahead_min, _ENTRIES_UNKNOWN)
        share = self._cache_bytes // (2 * len(self._streams))
        ahead = max(self._ahead_min, min(2 * stream.ahead_bytes, self._ahead_max, share))
        return Fetched(ahead, max(1, stream.entries * ahead // max(1, stream.ahead_bytes)))

    def end(self, ledger_id: int, entry_ids: Sequence[int], ahead_bytes: int) -> None:
        """What a fetch brought."""
        self._streams[ledger_id] = _Stream(entry_ids[-1] + 1, ahead_bytes, len(entry_ids))
        self._streams.move_to_end(ledger_id)
        if len(self._streams) > STREAMS_MAX:
            self._streams.popitem(last=False)

    def forget(self, ledger_id: int) -> None:
        self._streams.pop(ledger_id, None)
