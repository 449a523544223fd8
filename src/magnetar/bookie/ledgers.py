"""The ledgers a bookie is busy with, in memory: key, fence, limbo, LAC, and who waits for the LAC to move.

Invariant: a fence is set here before it is journaled, so that no plain add passes meanwhile; who asked for it is
           answered only after it is durable (`fencing`), and so is everybody who asks again before that.
Contexts:  the 32 bytes of word, key and ledger id with which a writer's adds begin. One that is in the table has passed
           every check, so the next thousand adds with it need none; fencing takes a ledger's contexts out.
Loading:   what storage knows of a ledger is read once, before its first request is served (`load`); until then the
           connection waits.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Callable
from typing import Final, Protocol

from magnetar.storage.ledger_flags import NO_FLAGS, LedgerFlags
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.hot_path import parse_context
from magnetar.wire.bookkeeper.packet import Flag

NO_LAC: Final = -1


class Ledger:
    __slots__ = ("contexts", "fencing", "flags", "id", "lac", "lac_changed_ms", "waiters")

    def __init__(self, ledger_id: int, flags: LedgerFlags) -> None:
        self.id = ledger_id
        self.flags = flags
        """Changed by the table only, which tells storage."""
        self.fencing: asyncio.Future[None] | None = None
        """Under way while not done. None: durable since before this process began, or not fenced."""
        self.lac = NO_LAC
        """The highest that any entry or explicit LAC told of."""
        self.lac_changed_ms = 0
        self.contexts: list[bytes] = []
        self.waiters: list[Callable[[], None]] = []

    def check_key(self, master_key: bytes) -> Code:
        """A ledger without a key takes any: the first one that comes becomes its own."""
        return Code.EOK if self.flags.master_key in (None, master_key) else Code.EUA

    def check_add(self, master_key: bytes, *, recovery: bool) -> Code:
        code = self.check_key(master_key)
        return Code.EFENCED if code is Code.EOK and self.flags.fenced and not recovery else code

    def move_lac(self, lac: int, now_ms: int) -> None:
        if lac <= self.lac:
            return
        self.lac = lac
        self.lac_changed_ms = now_ms
        waiters, self.waiters = self.waiters, []
        for waiter in waiters:
            waiter()


class FlagStore(Protocol):
    """Storage, as the table sees it. What is set is in memory at once, and in the index with the next flush."""

    async def get_flags(self, ledger_id: int) -> LedgerFlags | None: ...
    def set_flags(self, ledger_id: int, flags: LedgerFlags) -> None: ...


class LedgerTable:
    def __init__(self, storage: FlagStore) -> None:
        self._storage = storage
        self._ledgers: dict[int, Ledger] = {}
        self._loading: dict[int, asyncio.Task[Ledger]] = {}
        self._contexts: dict[bytes, Ledger] = {}
        self.find = self._ledgers.get
        self.find_context = self._contexts.get

    def __len__(self) -> int:
        return len(self._ledgers)

    async def load(self, ledger_id: int) -> Ledger:
        """One read serves everybody who asks meanwhile."""
        ledger = self._ledgers.get(ledger_id)
        if ledger is not None:
            return ledger
        loading = self._loading.get(ledger_id)
        if loading is None:
            loading = asyncio.get_running_loop().create_task(self._load(ledger_id), name=f"load ledger {ledger_id}")
            self._loading[ledger_id] = loading
        return await asyncio.shield(loading)

    async def _load(self, ledger_id: int) -> Ledger:
        try:
            ledger = Ledger(ledger_id, await self._storage.get_flags(ledger_id) or NO_FLAGS)
            self._ledgers[ledger_id] = ledger
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
            self._contexts[context] = ledger
            ledger.contexts.append(context)
        return ledger, code

    def change(self, ledger: Ledger, flags: LedgerFlags) -> None:
        """Before the record that makes it durable is submitted, so that no flush comes between the two."""
        self._storage.set_flags(ledger.id, flags)
        ledger.flags = dataclasses.replace(flags, deleted_at_ms=None)

    def learn_key(self, ledger: Ledger, master_key: bytes) -> None:
        if ledger.flags.master_key is None:
            self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key))

    def fence(self, ledger: Ledger, master_key: bytes) -> None:
        """From now on only recovery adds pass."""
        self.change(ledger, dataclasses.replace(ledger.flags, master_key=master_key, fenced=True))
        for context in ledger.contexts:
            del self._contexts[context]
        ledger.contexts.clear()

    def forget(self, ledger_id: int) -> None:
        """The ledger was deleted. Its fence lives on in storage."""
        ledger = self._ledgers.pop(ledger_id, None)
        if ledger is not None:
            for context in ledger.contexts:
                del self._contexts[context]

    async def aclose(self) -> None:
        tasks = list(self._loading.values())
        for task in tasks:
            task.cancel()
        if tasks:
            await asyncio.wait(tasks)
