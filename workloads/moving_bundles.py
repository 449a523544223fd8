"""Bundles that move: a thread unloads a random bundle of a cluster at every tick, so that topics change their owners.

Choice:  drawn from the seed, out of all bundles that have an owner at the moment.
Rest:    while `resting`, nothing is unloaded, and the last unload has ended.
Failure: an unload that is refused because the bundle moves for another reason is counted, and is no failure. Any other
         refusal is kept in `failures`.
"""

from __future__ import annotations

import math
import random
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, Self
from urllib.error import HTTPError

from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.errors import ProcessFailedError
from magnetar.names import TopicName
from workloads.admin_http import ask

_PASSING: Final = (404, 409, 412, 503)
"""The bundle was split, is being unloaded, or has no owner any more."""
_END_TIMEOUT_S: Final = 60.0
_LAG_S: Final = 5.0


class MovingBundles:
    """`with` starts and ends it."""

    def __init__(self, admin_urls: Sequence[str], seed: int, *, every_s: float = 1.0) -> None:
        self.seed = seed
        self.unloads = 0
        self.refused = 0
        self.failures: list[str] = []
        self._admin_urls = admin_urls
        self._every_s = every_s
        self._random = random.Random(seed)
        self._moved_s: dict[NamespaceBundle, float] = {}
        """When each bundle was moved last; infinite while it moves."""
        self._ends = threading.Event()
        self._turn = threading.Lock()
        self._thread = threading.Thread(target=self._run, name="moving-bundles", daemon=True)

    def has_moved(self, topic: str, since_s: float) -> bool:
        """Whether the topic's bundle has been unloaded since then, by `time.monotonic`, or shortly before: clients
        learn of it a little later."""
        name = TopicName.parse(topic)
        moves = list(self._moved_s.items())
        return any(name in bundle and moved_s >= since_s - _LAG_S for bundle, moved_s in moves)

    @contextmanager
    def resting(self) -> Iterator[None]:
        with self._turn:
            yield

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_exc: object) -> None:
        self._ends.set()
        self._thread.join(_END_TIMEOUT_S)
        if self._thread.is_alive():
            raise ProcessFailedError(f"an unload did not end within {_END_TIMEOUT_S:g} s")

    def _run(self) -> None:
        next_at = time.monotonic() + self._every_s
        while not self._ends.wait(max(0.0, next_at - time.monotonic())):
            next_at = max(next_at, time.monotonic() - self._every_s) + self._every_s  # One tick is made up for.
            with self._turn:
                try:
                    self._unload_one()
                except HTTPError as error:
                    self._on_refusal(error)
                except Exception as error:  # Read by the owner of this object.
                    self.failures.append(repr(error))

    def _unload_one(self) -> None:
        bundles = sorted(self._owned())
        if not bundles:
            return
        asked, bundle = self._random.choice(self._admin_urls), self._random.choice(bundles)
        self._moved_s[NamespaceBundle.parse(bundle)] = math.inf
        try:
            ask(asked, "PUT", f"/admin/v2/namespaces/{bundle}/unload")
        finally:
            self._moved_s[NamespaceBundle.parse(bundle)] = time.monotonic()
        self.unloads += 1

    def _owned(self) -> set[str]:
        asked = self._admin_urls[0]
        brokers: list[str] = ask(asked, "GET", "/admin/v2/brokers")
        cluster = ask(asked, "GET", "/admin/v2/clusters")[0]
        found: list[dict[str, Any]] = [
            ask(asked, "GET", f"/admin/v2/brokers/{cluster}/{broker}/ownedNamespaces") for broker in brokers
        ]
        return {bundle for owned in found for bundle in owned}

    def _on_refusal(self, error: HTTPError) -> None:
        if error.code in _PASSING:
            self.refused += 1
        else:
            self.failures.append(" ".join([str(error), *getattr(error, "__notes__", [])]))
        error.close()
