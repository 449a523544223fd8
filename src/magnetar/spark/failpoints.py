"""Points of the sink's protocol at which a test may end the process. Without a test: nothing.

Hook:      a test sets it in every process of a job; it is called with the point's name and the epoch, in whichever
           process reaches the point. There is no switch: no setting and no variable of the environment sets one.
Points:    ledger-created, mid-append, acked-not-returned (in tasks); tasks-done, before-intent, intent-reply-lost,
           between-topics, published, before-commit-file (on the driver); mid-copy is the broker's.
           In the order in which a batch passes them. What lies between them: docs/spark-sink.md
"""

from __future__ import annotations

from collections.abc import Callable

Hook = Callable[[str, int], None]

_hook: Hook | None = None


def set_hook(hook: Hook | None) -> None:
    global _hook
    _hook = hook


def reached(point: str, epoch: int) -> None:
    if _hook is not None:
        _hook(point, epoch)
