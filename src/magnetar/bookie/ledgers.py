"""The ledgers a bookie is busy with, in memory: key, fence, limbo, LAC, and who waits for the LAC to move.

Invariant: a fence is set here before it is journaled, so that no plain add passes meanwhile; who asked for it is
           answered only after it is durable (`fencing`), and so is everybody who asks again before that.
Contexts:  the 32 bytes of word, key and ledger id with which a writer's adds begin. One that is in the table has passed
           every check, so the next thousand adds with it need none; fencing takes a ledger's contexts out.
Loading:   what storage knows of a ledger is read once, before its first request is served (`load`); until then the
           connection waits.
Bound:     `bookie.ledgers_in_memory_max`. Beyond it each load lets one ledger go, contexts and all: the one that was
           idle for the longest time, by a clock hand that only loads move; requests do nothing for it. What a ledger's
           flags say is in storage from the moment they are set, so the next load finds them, flushed or not. Its LAC
           is learned anew.
Identity:  there is never more than one Ledger of an id. One that was let go while some request still holds it is found
           again (weakly) by the next load: else two would disagree about a fence. Not let go: one that is being fenced,
           because whoever asks for the fence next must wait for it, too; one that somebody waits at.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Final, Protocol
from weakref import WeakValueDictionary

from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.hot_path import parse_context
from magnetar.wire.bookkeeper.packet import Flag

NO_LAC: Final = -1
_LOOKS_PER_LOAD: Final = 4  # How far the clock hand goes to find an idle one; then the next one goes, idle or not.


class Ledger:
    __slots__ = (
        "__weakref__", "contexts", "fencing", "flags", "id", "lac", "lac_changed_ms", "lac_is_learned", "lac_seen",
        "waiters",
    )  # fmt: skip

    def __init__(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.id = ledger_id
        self.flags = flags
        """Changed by the table only, which tells storage."""
        self.fencing: asyncio.Future[None] | None = None
        """Under way while not done. None: durable since before this process began, or not fenced."""
        self.lac = NO_LAC
        """The highest that any entry or explicit LAC told of, since it was loaded …"""
        self.lac_is_learned = False
        """… and before, once somebody has looked: who only adds need not know it."""
        self.lac_changed_ms = 0
        self.lac_seen = NO_LAC
        """Where the LAC was when the clock hand came by: if it has not moved since, the ledger is idle."""
        self.contexts: list[bytes] = []
        self.waiters: list[Callable[[], None]] = []

    @property
    def is_known(self) -> bool:
        """Somebody wrote to it or fenced it here, and it was not deleted since. If not, entries may be here all the
        same: of a deleted ledger that is being recovered."""
        return self.flags.deleted_at_ms is None and (self.flags.master_key is not None or self.flags.fenced)

    def check_key(self, master_key: bytes) -> Code:
        """A ledger without a key takes any: the first one that comes becomes its own."""
        return Code.EOK if self.flags.master_key in (None, master_key) else Code.EUA

    def check_add(self, master_key: bytes, *, recovery: bool) -> Code:
        code = self.check_key(master_key)
        return Code.EFENCED if code is Code.EOK and self.flags.fenced and not recovery else code

    @property
    def is_being_fenced(self) -> bool:
        return self.fencing is not None and not self.fencing.done()

    def move_lac(self, lac: int, now_ms: int) -> None:
        if lac <= self.lac:
            return
        self.lac = lac
        self.lac_changed_ms = now_ms
        if self.waiters:
            self.tell_waiters()

    def tell_waiters(self) -> None:
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()


def move_lacs(ledgers: Iterable[Ledger], lacs: Iterable[int], now_ms: int) -> None:
    """`move_lac` of many, without a call for each."""
    for ledger, lac in zip(ledgers, lacs, strict=True):
        if lac > ledger.lac:
            ledger.lac = lac
            ledger.lac_changed_ms = now_ms
            if ledger.waiters:
                ledger.tell_waiters()


class FlagStore(Protocol):
    """Storage, as the table sees it. What is set is in memory at once, and in the index with the next flush."""

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None: ...
    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None: ...


class LedgerTable:
    def __init__(self, storage: FlagStore, ledgers_max: int = 50_000) -> None:
        self._storage = storage
        self._ledgers: OrderedDict[int, Ledger] = OrderedDict()
        """In the order in which the clock hand meets them."""
        self._let_go: WeakValueDictionary[int, Ledger] = WeakValueDictionary()
        self._loading: dict[int, asyncio.Task[Ledger]] = {}
        self._contexts: dict[bytes, Ledger] = {}
        self.ledgers_max = ledgers_max
        self.evictions = 0
        self.find = self._ledgers.get
        self.find_context = self._contexts.get

    def __len__(self) -> int:
        return len(self._ledgers)

    async def load(self, ledger_id: int) -> Ledger:
        """One read serves everybody who asks meanwhile."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            return ledger
        ledger = self._let_go.get(ledger_id)
        if ledger is not None:
            self._keep(ledger)
            return ledger
        loading = self._loading.get(ledger_id)
        if loading is None:
            loading = asyncio.get_running_loop().create_task(self._load(ledger_id), name=f"load ledger {ledger_id}")
            self._loading[ledger_id] = loading
        return await asyncio.shield(loading)

    async def _load(self, ledger_id: int) -> Ledger:
        try:
            ledger = Ledger(ledger_id, await self._storage.get_flags(ledger_id) or NO_FLAGS)
            self._keep(ledger)
            return ledger
        finally:
            del self._loading[ledger_id]

    def admit(self, context: bytes) -> tuple[Ledger | None, Code]:
        """Checks a context that is not known. No ledger: it must be loaded first."""
        ledger_id, master_key, flags = parse_context(context)
        ledger = self._ledgers.get(ledger_id)
        if ledger is None:
            return None, Code.EOK
        code = ledger.check_add(master_key, recovery=bool(flags & Flag.RECOVERY_ADD))
        if code is Code.EOK:
            self.learn_key(ledger, master_key)
            if context not in self._contexts:  # Else it came in company of one that is not known.
                self._contexts[context] = ledger
                ledger.contexts.append(context)
        return ledger, code

    def change(self, ledger: Ledger, flags: LedgerFlags) -> None:
        """Before the record that makes it durable is submitted, so that no flush comes between the two."""
        self._keep(ledger)
        self._storage.set_flags(ledger.id, flags)
        ledger.flags = dataclasses.replace(flags, deleted_at_ms=None)

    def learn_key(self, ledger: Ledger, master_key: bytes) -> None:
        if ledger.flags.master_key is None:
            self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key))

    def fence(self, ledger: Ledger, master_key: bytes) -> None:
        """From now on only recovery adds pass."""
        self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key, fenced=True))
        self._forget_contexts(ledger)

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted. Its fence lives on in storage, or here if it is being set."""
        ledger = self._ledgers.get(ledger_id) or self._let_go.get(ledger_id)
        if ledger is None or ledger.is_being_fenced:
            return
        self._ledgers.pop(ledger_id, None)
        self._forget_contexts(ledger)
        # For whoever still holds it, what storage knows now: nothing, or a tombstone. One that was fenced in this life
        # may have none, if the fence came while the ledger was being deleted.
        if not ledger.flags.fenced:
            ledger.flags = NO_FLAGS
        elif ledger.fencing is None:
            ledger.flags = LedgerFlags(master_key=ledger.flags.master_key, fenced=True, deleted_at_ms=0)
        self._let_go[ledger_id] = ledger

    # --- the bound ----------------------------------------------------------------------------------------------------

    def _keep(self, ledger: Ledger) -> None:
        if ledger.id in self._ledgers:
            return
        self._let_go.pop(ledger.id, None)
        self._let_one_go()
        self._ledgers[ledger.id] = ledger

    def _let_one_go(self) -> None:
        """If there is no room for one more. One that was just loaded has a good part of the others before it: it is
        still there when its connection comes back for it, and so are all that one read of a socket may name."""
        for looks_left in reversed(range(_LOOKS_PER_LOAD)):
            if len(self._ledgers) < self.ledgers_max:
                return
            ledger_id, ledger = self._ledgers.popitem(last=False)
            is_busy = looks_left and ledger.lac != ledger.lac_seen
            if ledger.waiters or ledger.is_being_fenced or is_busy:
                ledger.lac_seen = ledger.lac
                self._ledgers[ledger_id] = ledger  # Behind all others.
                continue
            self._forget_contexts(ledger)
            self._let_go[ledger_id] = ledger
            self.evictions += 1

    def _forget_contexts(self, ledger: Ledger) -> None:
        for context in ledger.contexts:
            del self._contexts[context]
        ledger.contexts.clear()

    async def aclose(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
