"""Runtime: the bundle of seams a composition root hands to its components."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from magnetar.runtime.disk import Disk
from magnetar.runtime.entropy import Entropy
from magnetar.runtime.offload import Offload


class Runtime(ABC):
    entropy: Entropy
    ordered_store: Callable[[str], Any] | None = None
    """Opens the twin of the library that keeps sorted keys at a path (storage/ordered_store.py). None: the real one,
    which has threads and files of its own that nobody can simulate."""

    @abstractmethod
    def disk(self, root: str, *, name: str) -> Disk:
        """A disk with a thread of its own; the caller owns and closes it. `name` is what the thread is called."""

    @abstractmethod
    def offload(self, *, name: str) -> Offload:
        """A lane with a thread of its own; the caller owns and closes it."""
