"""One watcher, armed once."""

from __future__ import annotations

from typing import Any

from magnetar.metadata.store import Watcher, WatchEvent
from magnetar.metadata.watches import call_watcher
from magnetar.metadata.zookeeper.translate import WATCH_KINDS


class ArmedWatch:
    """What kazoo is given. It keeps a set of watchers per path, so each must be an object of its own.

    kazoo forgets all watches when the connection is lost, and tells each with an event of type NONE: the change is
    delivered, or the interruption is. A read that failed, or that nobody waits for any more, arms nothing: its watch
    is muted.
    """

    __slots__ = ("_path", "_watcher")

    def __init__(self, path: str, watcher: Watcher) -> None:
        self._path = path
        self._watcher: Watcher | None = watcher

    def mute(self) -> None:
        self._watcher = None

    def __call__(self, event: Any) -> None:
        """On the loop."""
        watcher, self._watcher = self._watcher, None
        if watcher is not None:
            call_watcher(watcher, WatchEvent(WATCH_KINDS[event.type], self._path))
