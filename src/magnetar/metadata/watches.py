"""Armed watches of the local stores: which watchers to call for which path."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable
from dataclasses import dataclass

from magnetar.metadata.store import Watcher, WatchEvent, WatchKind


@dataclass(frozen=True, slots=True)
class _Armed:
    session: int
    watcher: Watcher


class WatchTable:
    """One-shot watches by path. A value watch fires for its node, a children watch also for names below it."""

    def __init__(self) -> None:
        self._value: dict[str, list[_Armed]] = {}
        self._children: dict[str, list[_Armed]] = {}

    def arm_value(self, path: str, session: int, watcher: Watcher) -> None:
        self._value.setdefault(path, []).append(_Armed(session, watcher))

    def arm_children(self, path: str, session: int, watcher: Watcher) -> None:
        self._children.setdefault(path, []).append(_Armed(session, watcher))

    def fire(self, events: Iterable[WatchEvent]) -> None:
        for event in events:
            for table in self._concerned(event.kind):
                for armed in table.pop(event.path, ()):
                    call_watcher(armed.watcher, event)

    def interrupt(self, session: int) -> None:
        """Ends the session's watches, as it cannot receive changes any more."""
        for table in (self._value, self._children):
            for path in list(table):
                mine = [armed for armed in table[path] if armed.session == session]
                others = [armed for armed in table[path] if armed.session != session]
                if others:
                    table[path] = others
                else:
                    del table[path]
                for armed in mine:
                    call_watcher(armed.watcher, WatchEvent(WatchKind.INTERRUPTED, path))

    def __len__(self) -> int:
        return sum(len(armed) for table in (self._value, self._children) for armed in table.values())

    def _concerned(self, kind: WatchKind) -> tuple[dict[str, list[_Armed]], ...]:
        if kind is WatchKind.CHILDREN:
            return (self._children,)
        if kind is WatchKind.DELETED:
            return (self._value, self._children)
        return (self._value,)


def call_watcher(watcher: Watcher, event: WatchEvent) -> None:
    """Calls the watcher. One that fails is its owner's bug: it is reported, and the others are still called."""
    try:
        watcher(event)
    except Exception as error:
        asyncio.get_running_loop().call_exception_handler(
            {"message": f"the watcher of {event.path} failed on {event.kind.value}", "exception": error}
        )
