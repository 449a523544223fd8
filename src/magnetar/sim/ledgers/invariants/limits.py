"""What must end or stay small: V4, V5, and what a bookie holds in memory: M1.

Truth:     M1 counts the buffers themselves, found where they are: in what connections keep, in answers that wait, in
           the frames of coroutines that make answers, in caches. The bookie's own counters, which its limits and
           metrics use, must agree with them.
When:      at some of the bookie's answers. What is handled at that moment is left out.
"""

from __future__ import annotations

import asyncio
import gc
import types
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Final

from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.runtime.receiving import SMALL_BYTES
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, Invariant, LedgerChange, Watch
from magnetar.storage.frames import KEPT_PER_BYTE
from magnetar.storage.write_cache import ENTRY_OVERHEAD_BYTES
from magnetar.wire.bookkeeper.codes import Code
from magnetar.wire.bookkeeper.frames import Flag

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie
    from magnetar.bookie.connection import Connection
    from magnetar.runtime.receiving import ReceiveMemory


# --- what must end ----------------------------------------------------------------------------------------------------

_CONNECTS_PER_S: Final = 60  # Of one client to one bookie. The shortest pause between two tries is 5 ms, and doubled.
_REQUESTS_PER_S: Final = 100  # Of metadata, for each pair of client and bookie.
_CHANGE_PAUSE_S: Final = 0.025  # The shortest pause of a writer between two changes, of which the first was in vain.


class EnsembleChangesAreLimited(Invariant):
    """V4: a writer that chases dead bookies gives up, and no client tries anything again without a pause.

    In vain:   changes of a ledger between which no bookie took an entry of it. Every member of the ensemble may fail
               by itself, and is replaced at once; but who replaces those, and takes nothing either, is replaced after
               a pause. So there are E changes, and then as many as there are pauses in the time that they took.
    """

    id = "V4"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._changes: dict[int, int] = {}
        self._in_vain: dict[int, list[float]] = {}

    def on_add_answer(self, answer: AddAnswer) -> None:
        if answer.code == Code.EOK:
            self._in_vain.pop(answer.ledger_id, None)

    def on_ledger_change(self, change: LedgerChange) -> None:
        before, after = change.before, change.after
        if before is None or after is None or after.value.state is not LedgerState.OPEN:
            return
        self.watch.counters["ensemble changes"] += 1
        count = self._changes[change.ledger_id] = self._changes.get(change.ledger_id, 0) + 1
        limit = self.watch.options.client_config().ledger.ensemble_changes_max  # The window outlasts every run.
        if count > limit:
            self.violated(f"the bookies of ledger {change.ledger_id} were replaced {count} times; the limit is {limit}")
        in_vain = self._in_vain.setdefault(change.ledger_id, [])
        in_vain.append(self.watch.now)
        took_s = self.watch.now - in_vain[0]
        if len(in_vain) > after.value.ensemble_size + took_s / _CHANGE_PAUSE_S:
            self.violated(
                f"the bookies of ledger {change.ledger_id} were replaced {len(in_vain)} times within {took_s:.3f} s, "
                "and no bookie took an entry in between: a client tries again without a pause"
            )

    def at_end(self) -> None:
        """Nor does any client try again and again without a pause."""
        watch, options = self.watch, self.watch.options
        counters = watch.world.network.counters
        connections = counters.connections + counters.refused - watch.counters["hostile connections"]
        pairs = (options.clients + 1) * options.bookies
        for what, count, most in (
            ("connections", connections, pairs * _CONNECTS_PER_S),
            ("metadata requests", watch.counters["metadata requests"], (pairs + 1) * _REQUESTS_PER_S),
        ):
            if count > most * watch.now:
                self.violated(f"{count} {what} in {watch.now:.1f} s: a client tries again without a pause")


class NothingOutlives(Invariant):
    """V5: a client or a bookie that was closed has no task and no timer left.

    The cluster looks at connections (sim/ledgers/cluster.py).
    """

    id = "V5"

    def on_client_closed(self, name: str) -> None:
        self._check(name)

    def on_bookie_closed(self, bookie: BookieWatch) -> None:
        self._check(bookie.name)

    def _check(self, name: str) -> None:
        """Called by the process itself, as the last thing it does."""
        loop = self.watch.world.loop
        process = loop.current()
        left = [task.get_name() for task in loop.tasks_of(process) if not task.get_name().startswith("main of")]
        if left:
            self.violated(f"{name} was closed, and its tasks {left} go on")
        timers = [
            repr(handle.callback)
            for _, _, handle in loop._timers
            if handle.process is process and not handle.cancelled() and _is_product(_module(handle.callback))
        ]
        if timers:
            self.violated(f"{name} was closed, and its timers go on: {timers}")


def _is_product(module: str) -> bool:
    return module.startswith("magnetar.") and not module.startswith("magnetar.sim")


def _module(callback: object) -> str:
    return str(getattr(getattr(callback, "__func__", callback), "__module__", ""))


# --- memory -----------------------------------------------------------------------------------------------------------

_EVERY: Final = 24  # Answers between two looks at everything.
_CONTEXTS_MAX: Final = Flag.ALL + 1
_HOLDERS: Final = (list, tuple, types.CoroutineType, types.GeneratorType, types.AsyncGeneratorType)


class MemoryIsBounded(Invariant):
    """M1: what a bookie holds is what it counts, and within what its limits allow."""

    id = "M1"

    def __init__(self, watch: Watch) -> None:
        super().__init__(watch)
        self._open: dict[str, Bookie] = {}
        self._answers = 0

    def on_bookie_open(self, bookie: BookieWatch, opened: Bookie) -> None:
        self._open[bookie.name] = opened

    def on_bookie_closed(self, bookie: BookieWatch) -> None:
        self._open.pop(bookie.name, None)

    def on_any_answer(self, bookie: BookieWatch) -> None:
        opened = self._open.get(bookie.name)
        if opened is None:
            return
        self._answers += 1
        if opened.receiving.kept_bytes > opened.receiving.bytes_max or self._answers % _EVERY == 0:
            for what in receiving_complaints(opened.receiving, opened._requests.connections):
                self.violated(f"{bookie.name}: {what}")
        if self._answers % _EVERY == 0:
            for what in complaints(opened):
                self.violated(f"{bookie.name}: {what}")


def complaints(bookie: Bookie) -> Iterable[str]:
    """About everything but what connections have received."""
    connections = list(bookie._requests.connections)
    yield from _answer_complaints(bookie, connections)
    yield from _cache_complaints(bookie)
    yield from _context_complaints(bookie)


def receiving_complaints(memory: ReceiveMemory, connections: Iterable[Any]) -> Iterable[str]:
    """Of connections that have a `Received`, of bookies or brokers."""
    kept = []
    for connection in connections:
        received = connection._inbox
        is_handled_now = received.data is memory.shared
        kept.append(received._kept_bytes if is_handled_now else len(received.data))
    total = sum(kept)
    if total != memory.kept_bytes:
        yield f"connections keep {total} bytes that they received, and {memory.kept_bytes} are counted"
    if total > memory.bytes_max:
        others = sorted(kept)[:-1]  # One may always finish its frame; each may keep a little, and one a whole read.
        if sum(max(0, size - SMALL_BYTES) for size in others) > memory.bytes_max + len(memory.shared):
            yield f"connections keep {total} bytes that they received; {memory.bytes_max} are allowed"


# --- answers ----------------------------------------------------------------------------------------------------------


def _answer_complaints(bookie: Bookie, connections: Iterable[Connection]) -> Iterable[str]:
    cached = _cached(bookie)
    current = asyncio.current_task()
    for connection in connections:
        size = sum(map(len, connection._unsent))
        if size != connection._unsent_bytes:
            yield f"{size} bytes of answers wait on a connection, and {connection._unsent_bytes} are counted"
        yield from _keeping_complaints(_views(connection._unsent), cached, "answers that wait")
    for task in bookie.reads._tasks:
        if task is not current:
            yield from _keeping_complaints(_views(task.get_coro()), cached, "answers that are made")


def _keeping_complaints(views: list[memoryview], cached: dict[int, None], what: str) -> Iterable[str]:
    """Views of chunks that a cache holds cost nothing now."""
    views = [view for view in views if id(view.obj) not in cached]
    used = sum(map(len, views))
    kept = sum({id(view.obj): len(view.obj) for view in views}.values())  # type: ignore[arg-type]
    if kept > KEPT_PER_BYTE * used:
        yield f"{what}, of {used} bytes, keep {kept} bytes of chunks in memory"


def _views(root: object) -> list[memoryview]:
    """Those that are reachable from here through containers and through the frames of coroutines."""
    found: list[memoryview] = []
    seen: dict[int, None] = {}
    stack = [root]
    while stack:
        current = stack.pop()
        if id(current) in seen:
            continue
        seen[id(current)] = None
        if type(current) is memoryview:
            found.append(current)
        elif isinstance(current, _HOLDERS):
            stack += gc.get_referents(current)
    return found


def _cached(bookie: Bookie) -> dict[int, None]:
    """The chunks of all caches, by `id`."""
    storage = bookie._storage
    chunks: dict[int, None] = {id(chunk.obj): None for cache in storage._caches() for chunk in cache._chunks}
    chunks.update({id(run.data): None for run in storage._reads.cache._chunks.values()})
    return chunks


# --- tables -----------------------------------------------------------------------------------------------------------


def _cache_complaints(bookie: Bookie) -> Iterable[str]:
    storage = bookie._storage
    for cache in storage._caches():
        size = sum(map(len, cache._chunks)) + len(cache._offsets) * ENTRY_OVERHEAD_BYTES
        if size != cache.bytes:
            yield f"a write cache has {size} bytes, and counts {cache.bytes}"
    read = storage._reads.cache
    size = sum(len(run.data) + len(run.entry_ids) * ENTRY_OVERHEAD_BYTES for run in read._chunks.values())
    if size != read.bytes:
        yield f"the read cache has {size} bytes, and counts {read.bytes}"
    if size > read._bytes_max:
        yield f"the read cache has {size} bytes; {read._bytes_max} are allowed"


def _context_complaints(bookie: Bookie) -> Iterable[str]:
    table = bookie.table
    counts = [len(ledger.contexts) for ledger in table._ledgers.values()]
    if sum(counts) != len(table._contexts):
        yield f"ledgers have {sum(counts)} contexts, and the table has {len(table._contexts)}"
    if max(counts, default=0) > _CONTEXTS_MAX:
        yield f"a ledger has {max(counts)} contexts; {_CONTEXTS_MAX} are allowed"
