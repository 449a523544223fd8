"""What must end or stay small: V4, V5."""

from __future__ import annotations

from typing import Final

from magnetar.metadata.bookkeeper.ledger_metadata import LedgerState
from magnetar.sim.ledgers.watch import AddAnswer, BookieWatch, Invariant, LedgerChange, Watch
from magnetar.wire.bookkeeper.codes import Code

_CONNECTS_PER_S: Final = 60  # Of one client to one bookie. The shortest pause between two tries is 5 ms, and doubled.
_REQUESTS_PER_S: Final = 100  # Of metadata, for each pair of client and bookie.
_CHANGE_PAUSE_S: Final = 0.025  # The shortest pause of a writer between two changes, of which the first was in vain.


class EnsembleChangesAreLimited(Invariant):
    """V4: a writer that chases dead bookies gives up, and nobody tries anything again without a pause.

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
                "and nobody took an entry in between: somebody tries again without a pause"
            )

    def at_end(self) -> None:
        """Nor does anybody try again and again without a pause."""
        watch, options = self.watch, self.watch.options
        counters = watch.world.network.counters
        pairs = (options.clients + 1) * options.bookies
        for what, count, most in (
            ("connections", counters.connections + counters.refused, pairs * _CONNECTS_PER_S),
            ("metadata requests", watch.counters["metadata requests"], (pairs + 1) * _REQUESTS_PER_S),
        ):
            if count > most * watch.now:
                self.violated(f"{count} {what} in {watch.now:.1f} s: somebody tries again without a pause")


class NothingOutlives(Invariant):
    """V5: a client or a bookie that was closed has no task and no timer left. (settle.py looks at connections.)"""

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
