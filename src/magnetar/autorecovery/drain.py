"""Drain: all ledgers of one bookie get other bookies, and an operator sees how far that is.

    drain = Drain(store, paths, ledgers, marker, bookie)
    await drain.begin("the bookie is being decommissioned")
    while not (look := await drain.look()).is_done:
        print(look, Rate)

Order:     the bookie's ledgers are found and marked; workers do the rest. A ledger is done when it has no mark and does
           not name the bookie for any entry any more. When all are done, all ledgers of the cluster are searched again:
           new ones may have been placed on the bookie meanwhile.
           Decommission: the node `draining/ID` makes workers treat the bookie as one to leave although it still serves,
           so no copy is missing meanwhile; the bookie itself turns read-only. In the end its cookie is deleted, once it
           is stopped.
Read next: marking.py; cli/bookie/decommission.py and cli/recovery.py (the callers)
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from magnetar.autorecovery.examine import ENTRY_BYTES_GUESSED
from magnetar.autorecovery.fragments import bookies_with_entries, settled_fragments
from magnetar.autorecovery.marking import READS_AT_ONCE, Marker, in_batches, metadata_if_exists
from magnetar.errors import BadVersionError, MetadataError
from magnetar.ids import BookieId, LedgerId
from magnetar.metadata.bookkeeper.cookies import CookieStore
from magnetar.metadata.bookkeeper.ledger_metadata import LedgerMetadata
from magnetar.metadata.bookkeeper.ledgers import LedgerMetadataStore
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.bookkeeper.recovery_nodes import (
    BookieSet,
    MarkState,
    RecoveryNotes,
    RecoveryPaths,
    elected_auditor,
    is_disabled,
)
from magnetar.metadata.bookkeeper.underreplication import UnderreplicationMarks
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.gather import gather_bounded

_BLOCKERS_MAX: Final = 10
_LOOKED_AT_MAX: Final = 500  # Of the ledgers that are left: their notes are read to say what holds them.
_COOKIE_TRIES: Final = 3


def bytes_on(metadata: LedgerMetadata, bookie: BookieId) -> int:
    """Returns the expected size of what the bookie has of the ledger."""
    entries = metadata.last_entry_id + 1
    each = metadata.length / entries if metadata.is_closed and entries > 0 else ENTRY_BYTES_GUESSED
    held = 0
    for fragment in settled_fragments(metadata, metadata.last_entry_id):
        for position in fragment.positions:
            if fragment.ensemble[position] == bookie and (part := fragment.held(position)) is not None:
                held += part.count
    return int(held * each)


@dataclass(frozen=True, slots=True)
class DrainLook:
    """How far a drain is."""

    ledgers: int
    ledgers_left: int
    bytes: int
    bytes_left: int
    blockers: tuple[str, ...] = ()
    """What holds it, the most frequent first; nothing while workers are busy."""
    is_done: bool = False


class Drain:
    def __init__(
        self,
        store: MetadataStore,
        paths: BookKeeperPaths,
        ledgers: LedgerMetadataStore,
        marker: Marker,
        bookie: BookieId,
    ) -> None:
        self._store = store
        self._paths = paths
        self._nodes = RecoveryPaths(paths)
        self._ledgers = ledgers
        self._marks = UnderreplicationMarks(store, paths)
        self._notes = RecoveryNotes(store, self._nodes)
        self._marker = marker
        self._bookie = bookie
        self._why = ""
        self._left: dict[LedgerId, int] = {}
        """Ledger → the expected bytes of it on the bookie."""
        self._total_ledgers = 0
        self._total_bytes = 0

    async def begin(self, why: str) -> None:
        """Finds and marks the ledgers of the bookie."""
        self._why = why
        await self._marks.prepare()
        await self._search()

    async def _search(self) -> None:
        found = await self._named()
        new = {ledger_id: size for ledger_id, size in found.items() if ledger_id not in self._left}
        self._left |= new
        self._total_ledgers += len(new)
        self._total_bytes += sum(new.values())
        index = {self._bookie: list(found)}
        await self._marker.mark_ledgers_of(index, {self._bookie: self._why})

    async def _named(self) -> dict[LedgerId, int]:
        found: dict[LedgerId, int] = {}
        async for batch in in_batches(self._ledgers.list(), READS_AT_ONCE):
            for metadata in await self._read(batch):
                if metadata is not None and self._bookie in bookies_with_entries(metadata):
                    found[metadata.ledger_id] = bytes_on(metadata, self._bookie)
        return found

    async def _read(self, ids: list[LedgerId]) -> list[LedgerMetadata | None]:
        works = [partial(metadata_if_exists, self._ledgers, ledger_id) for ledger_id in ids]
        return await gather_bounded(works, READS_AT_ONCE)

    async def look(self) -> DrainLook:
        """Reads how far it is. When nothing seems to be left, all ledgers are searched again."""
        await self._drop_done()
        if not self._left:
            await self._search()
        blockers = await self._blockers() if self._left else ()
        return DrainLook(
            ledgers=self._total_ledgers,
            ledgers_left=len(self._left),
            bytes=self._total_bytes,
            bytes_left=sum(self._left.values()),
            blockers=blockers,
            is_done=not self._left,
        )

    async def _drop_done(self) -> None:
        marked = frozenset([ledger_id async for ledger_id in self._marks.list()])
        cleared = [ledger_id for ledger_id in self._left if ledger_id not in marked]
        for ledger_id, metadata in zip(cleared, await self._read(cleared), strict=True):
            if metadata is None or self._bookie not in bookies_with_entries(metadata):
                del self._left[ledger_id]
            else:  # Its mark was cleared although it names the bookie, as by an Apache worker: the bookie still serves.
                await self._marker.mark(ledger_id, {self._bookie: self._why})

    async def _blockers(self) -> tuple[str, ...]:
        found = Counter[str]()
        if await is_disabled(self._store, self._nodes):
            found["auto-recovery is disabled: run `magnetar recovery enable`"] += len(self._left)
        elif await elected_auditor(self._store, self._nodes) is None:
            found["no process with auto-recovery runs: start bookies, or `magnetar autorecovery`"] += len(self._left)
        if await self._store.get(self._paths.registration(self._bookie)) is not None:
            found[f"bookie {self._bookie} is still writable, so it may get new ledgers"] += 1
        ids = list(self._left)[:_LOOKED_AT_MAX]
        notes = await gather_bounded([partial(self._notes.read, ledger_id) for ledger_id in ids], READS_AT_ONCE)
        for note in notes:
            if note is not None and note.state in (MarkState.WAITING, MarkState.UNREPAIRABLE):
                found[f"{note.state.value}: {note.why}"] += 1
        return tuple(
            f"{why} ({count} ledgers)" if count > 1 else why for why, count in found.most_common(_BLOCKERS_MAX)
        )


class Decommission:
    """The nodes of a bookie that is being decommissioned: `begin`, then a `Drain`, then `finish`; `cancel` ends it."""

    def __init__(self, store: MetadataStore, paths: BookKeeperPaths, bookie: BookieId) -> None:
        nodes = RecoveryPaths(paths)
        self._store = store
        self._paths = paths
        self._bookie = bookie
        self._draining = BookieSet(store, nodes.draining)
        self._lost = BookieSet(store, nodes.lost)
        self._cookies = CookieStore(store, paths)

    async def is_registered(self) -> bool:
        for read_only in (False, True):
            if await self._store.get(self._paths.registration(self._bookie, readonly=read_only)) is not None:
                return True
        return False

    async def is_known(self) -> bool:
        return await self.is_registered() or await self._store.get(self._paths.cookie(self._bookie)) is not None

    async def begin(self, now_ms: int) -> None:
        await self._draining.add(self._bookie, now_ms)

    async def cancel(self) -> bool:
        """Reports whether it was being decommissioned. Marks that exist are repaired, and copy nothing any more."""
        return await self._draining.discard(self._bookie)

    async def finish(self) -> bool:
        """Deletes the cookie of a drained bookie. False if it is still registered: it must be stopped first."""
        if await self.is_registered():
            return False
        for _ in range(_COOKIE_TRIES):
            node = await self._store.get(self._paths.cookie(self._bookie))
            if node is None:
                break
            try:
                await self._cookies.delete(self._bookie, node.version)
            except BadVersionError:
                continue
            break
        else:
            raise MetadataError(f"the cookie of bookie {self._bookie} changes repeatedly: try again")
        await self._lost.discard(self._bookie)
        await self._draining.discard(self._bookie)
        return True


_WINDOW_S: Final = 30.0


@dataclass(slots=True)
class Rate:
    """How fast a number falls, over the last half minute, and how long it takes to reach zero."""

    _samples: deque[tuple[float, float]] = field(default_factory=deque)

    def on_sample(self, now: float, left: float) -> None:
        if self._samples and left > self._samples[-1][1]:  # More was added.
            self._samples.clear()
        self._samples.append((now, left))
        while now - self._samples[0][0] > _WINDOW_S and len(self._samples) > 2:
            self._samples.popleft()

    @property
    def per_second(self) -> float:
        if len(self._samples) < 2:
            return 0.0
        (began, before), (now, left) = self._samples[0], self._samples[-1]
        return (before - left) / (now - began) if now > began else 0.0

    @property
    def seconds_left(self) -> float | None:
        """Returns None if that cannot be said."""
        return self._samples[-1][1] / self.per_second if self.per_second > 0 else None
