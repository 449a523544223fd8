"""Points of the sink's protocol at which a test may end the process. In production they do nothing.

Invariant: a test sets the hook in every process of a job; it is called with the point's name and the epoch, in the
           process that reaches the point. There is no switch: no setting and no environment variable sets one.
Order:     ledger-created, mid-append, acked-not-returned (in tasks); tasks-done, before-intent, intent-reply-lost,
           between-topics, published, before-commit-file (on the driver); mid-copy is the broker's. A batch passes them
           in this order; docs/spark-sink.md describes the steps between them.
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
