"""The next ledger id, from the same generator nodes that Apache's clients use, so that no id is given out twice.

Invariant: an id that was counted is never given out again. An id whose outcome is unknown is not used; the next is
           taken. A missing high-order directory is not made anew: it would count from 0 again. (Apache's clients remove
           old ones, so a generator that was idle for long looks for the largest again.)
Order:     an id is counted after it was asked for, never ahead: the new owner of a topic gets a larger one than all
           owners before, and positions are compared by it.
Format:    short ids: the number of an ephemeral sequential node `idgen/ID-`: 0 … 2³¹ − 2.
           long ids: when those are used up, `idgen-long` is made, and because it exists every client moves to it. Below
           it `HOB-0000000001` holds the high 32 bits; the number of a sequential node below that is the low half.
           A directory whose 2³¹ − 1 numbers are used up is followed by the next.
Limits:    a node is useless once it was counted. Nodes are deleted in the background, many at a time; the rest are
           deleted with the session.
"""

from __future__ import annotations

import asyncio
import contextlib
import re
from typing import Final

from magnetar.errors import (
    LedgerIdsExhaustedError,
    MalformedMetadataError,
    MetadataError,
    NodeExistsError,
    NoNodeError,
    OutcomeUnknownError,
)
from magnetar.ids import LedgerId
from magnetar.metadata.bookkeeper.paths import SHORT_ID_LIMIT, BookKeeperPaths
from magnetar.metadata.paths import join
from magnetar.metadata.store import CreateMode, Delete, MetadataStore

_TRIES_MAX: Final = 10  # Each loses one id or moves to the next directory; more means another kind of error.
_HIGH_LIMIT: Final = 2**31  # The high half of a positive 64-bit number.
_FIRST_HIGH: Final = 1
_DELETED_AT_ONCE: Final = 64
_SEQUENCE = re.compile(r"(-?[0-9]{1,10})")  # ZooKeeper's counter has 32 bits with a sign, and does wrap around.
_HIGH_DIRECTORY = re.compile(r"HOB-([0-9]{10})")


class LedgerIdGenerator:
    """Gives out ids for one cluster; any number of these may work at once. `aclose` when no more are wanted."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths) -> None:
        self._store = store
        self._paths = paths
        self._long = False  # Whether the cluster is known to have used up its short ids.
        self._asked = False
        self._high: int | None = None  # The largest high-order directory, as far as this client knows.
        self._used: list[str] = []  # Nodes that were counted: as many as the ids that are asked for during a delete.
        self._tidying: asyncio.Task[None] | None = None

    async def aclose(self) -> None:
        """Returns when the nodes of all ids are deleted, or cannot be."""
        if self._tidying is not None:
            await asyncio.wait([self._tidying])

    async def next_id(self) -> LedgerId:
        """Returns an unused ledger id. Raises OutcomeUnknownError only after several lost connections in a row."""
        for tries_left in reversed(range(_TRIES_MAX)):
            try:
                found = await self._next_long() if await self._is_long() else await self._next_short()
            except OutcomeUnknownError:  # Perhaps an id was counted; it will not be used.
                if not tries_left:
                    raise
            else:
                if found is not None:
                    return found
        raise LedgerIdsExhaustedError(f"no ledger id from {self._paths.root} in {_TRIES_MAX} tries")

    async def _is_long(self) -> bool:
        if not self._asked:
            self._long = await self._store.get(self._paths.long_ids) is not None
            self._asked = True
        return self._long

    async def _next_short(self) -> LedgerId | None:
        number = await self._count(self._paths.short_ids, make_parents=True)
        if number is not None:
            return LedgerId(number)
        await self._ensure(self._paths.long_ids)
        self._long = True
        return None

    async def _next_long(self) -> LedgerId | None:
        if self._high is None:
            self._high = await self._largest_high()
        if self._high is None:
            await self._ensure(self._high_path(_FIRST_HIGH))
            return None
        high, self._high = self._high, None  # Known again only if it turns out to be good.
        try:
            low = await self._count(self._high_path(high), make_parents=False)
        except NoNodeError:
            return None
        if low is None:
            await self._open_high(high + 1)
            return None
        self._high = high
        return LedgerId(high << 32 | low)

    async def _open_high(self, high: int) -> None:
        if high >= _HIGH_LIMIT:
            raise LedgerIdsExhaustedError(f"all 63-bit ledger ids below {self._paths.long_ids} are used up")
        await self._ensure(self._high_path(high))

    async def _largest_high(self) -> int | None:
        names = await self._store.children(self._paths.long_ids)
        numbers = [int(found[1]) for name in names if (found := _HIGH_DIRECTORY.fullmatch(name))]
        largest = max(numbers, default=None)
        if largest is not None and not 0 <= largest < _HIGH_LIMIT:
            raise MalformedMetadataError(f"{self._paths.long_ids} has a directory for high bits {largest}")
        return largest

    def _high_path(self, high: int) -> str:
        return join(self._paths.long_ids, f"HOB-{high:010d}")

    async def _count(self, directory: str, *, make_parents: bool) -> int | None:
        """Returns the next number of this directory; None when it has no more."""
        prefix = join(directory, "ID-")
        made = await self._store.create(prefix, mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=make_parents)
        self._tidy(made)
        found = _SEQUENCE.fullmatch(made.removeprefix(prefix))
        if found is None:
            raise MalformedMetadataError(f"a sequential node has no number at its end: {made}")
        number = int(found[1])
        return number if 0 <= number < SHORT_ID_LIMIT else None

    def _tidy(self, node: str) -> None:
        self._used.append(node)
        if self._tidying is None:
            self._tidying = asyncio.get_running_loop().create_task(self._delete_used(), name="ledger-id-nodes")

    async def _delete_used(self) -> None:
        try:
            while self._used:
                nodes, self._used = self._used[:_DELETED_AT_ONCE], self._used[_DELETED_AT_ONCE:]
                with contextlib.suppress(MetadataError):  # They are deleted with the session at the latest.
                    await self._store.transact([Delete(node) for node in nodes])
        finally:
            self._tidying = None

    async def _ensure(self, path: str) -> None:
        with contextlib.suppress(NodeExistsError):  # Another client moves on at the same time.
            await self._store.create(path, make_parents=True)
