"""The ledgers a bookie is busy with, in memory: key, fence, limbo, LAC, readers that wait for the LAC; and fencing.

Invariant: a fence takes a ledger from its writer forever. It is set here before it is journaled, so that no plain add
           passes during the write. No client that asked for the fence gets any answer, "no such entry" and "no such
           ledger" included, before it is durable; this holds for later requests for the same fence, too (`fencing`). A
           ledger that the bookie never saw is fenced anyway.
           At most one Ledger of an id exists. One that was evicted while some request still holds it is found again
           (weakly) by the next load: otherwise two would disagree about a fence. A ledger that is being fenced, or on
           which a reader waits, is not evicted.
Order:     storage's knowledge of a ledger is read once, before its first request is served (`load`); until then the
           connection waits.
Format:    a context is the 32 bytes of word, key and ledger id with which a writer's adds begin. One in the table has
           passed every check, so the next thousand adds with it need none; fencing removes a ledger's contexts. A
           context whose flags have bits without meaning is checked each time: a ledger has a few contexts, not 65,536.
Limits:    `bookie.ledgers_in_memory_max`. Beyond it each load evicts one ledger, contexts and all: the one that was
           idle for the longest time, by a clock hand that only loads move; requests cost nothing. A ledger's flags are
           in storage from the moment they are set, so the next load finds them, flushed or not. Its LAC is learned
           anew.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Final, Protocol
from weakref import WeakValueDictionary

from magnetar.runtime.disk import Buffer
from magnetar.runtime.gather import cancel_all
from magnetar.storage.journal.format import Fence, RecordKind, encode_fence
from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.storage.ledger_storage import LedgerStorage
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import MASTER_KEY_BYTES, Flag
from magnetar.wire.bookkeeper.hot_path import parse_context

NO_LAC: Final = -1
_LOOKS_PER_LOAD: Final = 4  # How far the clock hand goes to find an idle one; then the next one goes, idle or not.


class RecordSink(Protocol):
    """A journal, or several as if they were one."""

    @property
    def has_room(self) -> bool: ...
    async def wait_for_room(self) -> None: ...
    def submit(self, kind: RecordKind, chunks: Sequence[Buffer], token: object) -> int: ...


class Ledger:
    __slots__ = (
        "__weakref__", "contexts", "fencing", "flags", "id", "lac", "lac_changed_ms", "lac_is_learned", "lac_seen",
        "waiters",
    )  # fmt: skip

    def __init__(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.id = ledger_id
        self.flags = flags
        """Changed by the table only, which informs storage."""
        self.fencing: asyncio.Future[None] | None = None
        """Not done while the fence is being written. None: durable since before this process began, or not fenced."""
        self.lac = NO_LAC
        """The highest LAC of any entry or explicit LAC since it was loaded …"""
        self.lac_is_learned = False
        """… and before that, once it was looked up: writers need not know it."""
        self.lac_changed_ms = 0
        self.lac_seen = NO_LAC
        """The LAC when the clock hand passed: if it has not moved since, the ledger is idle."""
        self.contexts: list[bytes] = []
        self.waiters: list[Callable[[], None]] = []

    @property
    def is_known(self) -> bool:
        """Reports whether it was written to or fenced here, and not deleted since. If not, entries may be here anyway:
        of a deleted ledger that is being recovered."""
        return self.flags.deleted_at_ms is None and (self.flags.master_key is not None or self.flags.fenced)

    def check_key(self, master_key: bytes) -> Code:
        """Checks the key. A ledger without a key takes any: the first one becomes its own."""
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


class LedgerTable:
    def __init__(self, storage: LedgerStorage, ledgers_max: int = 50_000) -> None:
        self._storage = storage
        self._ledgers: OrderedDict[int, Ledger] = OrderedDict()
        """In the order in which the clock hand passes them."""
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
        """Loads a ledger. One read serves all callers that ask during it."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            return ledger
        ledger = self._let_go.get(ledger_id)
        if ledger is not None:
            self.keep(ledger)
            return ledger
        loading = self._loading.get(ledger_id)
        if loading is None:
            loading = asyncio.get_running_loop().create_task(self._load(ledger_id), name=f"load ledger {ledger_id}")
            self._loading[ledger_id] = loading
        return await asyncio.shield(loading)

    async def _load(self, ledger_id: int) -> Ledger:
        try:
            ledger = Ledger(ledger_id, await self._storage.get_flags(ledger_id) or NO_FLAGS)
            self.keep(ledger)
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
            if context not in self._contexts and not flags & ~Flag.ALL:  # It may come in company of one that is new.
                self._contexts[context] = ledger
                ledger.contexts.append(context)
        return ledger, code

    def change(self, ledger: Ledger, flags: LedgerFlags) -> None:
        """Changes flags before the record that makes them durable is submitted, so that no flush comes between the
        two."""
        self.keep(ledger)
        self._storage.set_flags(ledger.id, flags)
        ledger.flags = dataclasses.replace(flags, deleted_at_ms=None)

    def learn_key(self, ledger: Ledger, master_key: bytes) -> None:
        if ledger.flags.master_key is None:
            self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key))

    def fence(self, ledger: Ledger, master_key: bytes) -> None:
        """Refuses all adds but those of recovery from now on."""
        self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key, fenced=True))
        self._forget_contexts(ledger)

    def forget(self, ledger_id: int) -> None:
        """Forgets a deleted ledger. Its fence stays in storage, or here if it is being set."""
        ledger = self._ledgers.get(ledger_id) or self._let_go.get(ledger_id)
        if ledger is None or ledger.is_being_fenced:
            return
        self._ledgers.pop(ledger_id, None)
        self._forget_contexts(ledger)
        # For requests that still hold it, what storage knows now: nothing, or a tombstone. A ledger that was fenced in
        # this process may have none, if the fence came while the ledger was being deleted.
        if not ledger.flags.fenced:
            ledger.flags = NO_FLAGS
        elif ledger.fencing is None:
            ledger.flags = LedgerFlags(master_key=ledger.flags.master_key, fenced=True, deleted_at_ms=0)
        self._let_go[ledger_id] = ledger

    def keep(self, ledger: Ledger) -> None:
        """Puts a ledger into the table, if it was evicted while the caller had it."""
        if ledger.id in self._ledgers:
            return
        self._let_go.pop(ledger.id, None)
        self._let_one_go()
        self._ledgers[ledger.id] = ledger

    def _let_one_go(self) -> None:
        """Evicts one ledger if there is no room for one more. One that was just loaded has many others before it."""
        for looks_left in reversed(range(_LOOKS_PER_LOAD)):
            if len(self._ledgers) < self.ledgers_max:
                return
            ledger_id, ledger = self._ledgers.popitem(last=False)
            is_busy = looks_left and ledger.lac != ledger.lac_seen
            if ledger.waiters or ledger.is_being_fenced or is_busy:
                ledger.lac_seen = ledger.lac
                self._ledgers[ledger_id] = ledger  # After all others.
                continue
            self._forget_contexts(ledger)
            self._let_go[ledger_id] = ledger
            self.evictions += 1

    def _forget_contexts(self, ledger: Ledger) -> None:
        for context in ledger.contexts:
            del self._contexts[context]
        ledger.contexts.clear()

    async def aclose(self) -> None:
        await cancel_all(list(self._loading.values()))


class Fencing:
    def __init__(self, table: LedgerTable, journal: RecordSink) -> None:
        self._table = table
        self._journal = journal
        self.fenced = 0

    async def fence(self, ledger_id: int, master_key: bytes) -> Code:
        """Returns when the fence is durable, or with EUA when the key is not the ledger's."""
        ledger = await self._table.load(ledger_id)
        await self._journal.wait_for_room()
        code = ledger.check_key(master_key)
        if code is not Code.EOK:
            return code
        if not ledger.flags.fenced:
            self._begin(ledger, master_key)
        if ledger.fencing is not None:
            await asyncio.shield(ledger.fencing)
        return Code.EOK

    def _begin(self, ledger: Ledger, master_key: bytes) -> None:
        """Sets the fence in one turn of the loop: no add is accepted, and no flush begins, between these lines."""
        assert len(master_key) == MASTER_KEY_BYTES, "refused by the decoder: it must change nothing"
        self.fenced += 1
        ledger.fencing = asyncio.get_running_loop().create_future()
        self._table.fence(ledger, master_key)
        self._journal.submit(RecordKind.FENCE, (encode_fence(Fence(ledger.id, master_key)),), ledger.fencing)


def move_lacs(ledgers: Iterable[Ledger], lacs: Iterable[int], now_ms: int) -> None:
    """Calls `move_lac` of many, without a call for each."""
    for ledger, lac in zip(ledgers, lacs, strict=True):
        if lac > ledger.lac:
            ledger.lac = lac
            ledger.lac_changed_ms = now_ms
            if ledger.waiters:
                ledger.tell_waiters()
