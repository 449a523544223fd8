"""Points of the sink's protocol at which a test may end the process. Without a test: nothing.

    SPARK_MAGNETAR_FAILPOINTS=package.module:function     in the environment of the driver and of its Python workers

Name:      it does not begin with MAGNETAR_, which is kept for the configuration of magnetar's own processes.
Hook:      the function is called with the point's name and the epoch, in whichever process reaches the point. It is
           imported when this module is, once per process, and only if the variable is set.
Points:    ledger-created, mid-append, acked-not-returned (in tasks); tasks-done, before-intent, intent-reply-lost,
           between-topics, published, before-commit-file (on the driver); mid-copy is the broker's.
           In the order in which a batch passes them. What lies between them: docs/spark-sink.md
"""

from __future__ import annotations

import os
from collections.abc import Callable
from importlib import import_module
from typing import Final

VARIABLE: Final = "SPARK_MAGNETAR_FAILPOINTS"

Hook = Callable[[str, int], None]


def _find_hook() -> Hook | None:
    named = os.environ.get(VARIABLE)
    if not named:
        return None
    module, _, function = named.partition(":")
    hook: Hook = getattr(import_module(module), function)
    return hook


_hook = _find_hook()


def set_hook(hook: Hook | None) -> None:
    """For a test that is in the process already."""
    global _hook
    _hook = hook


def reached(point: str, epoch: int) -> None:
    if _hook is not None:
        _hook(point, epoch)
