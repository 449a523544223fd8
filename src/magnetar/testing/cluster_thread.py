"""A cluster on a thread of its own, for tests that block: they call a client, and the cluster answers meanwhile.

Tests of one cluster are separated by namespace; `MagnetarCluster.for_test` makes one for each.

Threads:   Each method runs on the cluster's event loop, waits with a deadline, and raises what was raised there.
"""

from __future__ import annotations

import asyncio
import contextlib
import itertools
import threading
import time
from collections.abc import Callable, Coroutine, Iterable, Iterator, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import Any, Final, Self, TypeVar

import uvloop

from magnetar.broker.subscriptions.subscription import Subscription
from magnetar.errors import MagnetarError
from magnetar.testing.cluster import PulsarCluster

T = TypeVar("T")

START_TIMEOUT_S: Final = 60.0
CALL_TIMEOUT_S: Final = 60.0
WAIT_S: Final = 20.0
_POLL_S: Final = 0.01


class MagnetarCluster:
    """`with` starts and ends it."""

    def __init__(
        self, bookies: int = 1, *, directory: Path | None = None, settings: Iterable[str] = (), label: str = "t"
    ) -> None:
        """`label` begins the names of the tests' namespaces."""
        self.cluster = PulsarCluster(bookies, directory=directory, settings=settings)
        self._label = label
        self._numbers = itertools.count(1)
        self._loop: asyncio.AbstractEventLoop = uvloop.new_event_loop()
        self._started: Future[None] = Future()
        self._ends = asyncio.Event()
        self._thread = threading.Thread(target=self._main, name="magnetar-cluster", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        self._started.result(START_TIMEOUT_S)
        self.pulsar_url = self.cluster.pulsar_url
        self.admin_url = self.cluster.admin_url
        return self

    def __exit__(self, *_exc: object) -> None:
        self._loop.call_soon_threadsafe(self._ends.set)
        self._thread.join(START_TIMEOUT_S)

    def _main(self) -> None:
        with asyncio.Runner(loop_factory=lambda: self._loop) as runner:
            try:
                runner.run(self._serve())
            except BaseException as error:
                if not self._started.done():
                    self._started.set_exception(error)

    async def _serve(self) -> None:
        async with self.cluster:
            self._started.set_result(None)
            await self._ends.wait()

    def call(self, work: Coroutine[Any, Any, T], timeout: float = CALL_TIMEOUT_S) -> T:
        """Runs it on the cluster's event loop."""
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(timeout)

    # --- bookies ------------------------------------------------------------------------------------------------------

    @property
    def bookies(self) -> list[str]:
        """Their ids."""
        return [str(bookie_id) for bookie_id in self.cluster.bookies.bookie_ids]

    def kill(self, bookie: int | str) -> None:
        """By number or id: its connections break without an answer, and nothing is flushed."""
        self.call(self.cluster.bookies.kill(bookie))

    def restart(self, bookie: int | str) -> None:
        """On what it had on disk."""
        self.call(self.cluster.bookies.restart(bookie))

    def make_whole(self) -> None:
        """Starts the bookies that were killed."""
        for number, node in enumerate(self.cluster.bookies.nodes):
            if not node.is_running:
                self.restart(number)

    # --- tests --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def for_test(self) -> Iterator[MagnetarTest]:
        """With a new namespace; in the end its unused topics are deleted, and killed bookies started again."""
        namespace = f"public/{self._label}-{next(self._numbers)}"
        self.call(self.cluster.create_namespace(namespace))
        try:
            yield MagnetarTest(self, namespace)
        finally:
            self.make_whole()
            with contextlib.suppress(MagnetarError):  # The test's own business is done.
                self.call(self.cluster.delete_unused_topics(namespace))


class MagnetarTest:
    """The cluster as one test sees it: in a namespace of its own."""

    def __init__(self, cluster: MagnetarCluster, namespace: str) -> None:
        self.cluster = cluster
        self.namespace = namespace
        self.pulsar_url = cluster.pulsar_url
        self.admin_url = cluster.admin_url

    def topic(self, name: str = "topic") -> str:
        """Its full name."""
        return f"persistent://{self.namespace}/{name}"

    @property
    def bookies(self) -> list[str]:
        return self.cluster.bookies

    def kill(self, bookie: int | str) -> None:
        """By number or id; it is started again when the test ends, or by `restart`."""
        self.cluster.kill(bookie)

    def restart(self, bookie: int | str) -> None:
        self.cluster.restart(bookie)

    # --- waits --------------------------------------------------------------------------------------------------------

    def backlog(self, topic: str | None = None, subscription: str | None = None) -> int:
        """Messages that are not acknowledged, of all subscriptions here that fit."""
        return self.cluster.call(_messages(self._subscriptions(topic, subscription)))

    def until_backlog(
        self, messages: int, topic: str | None = None, subscription: str | None = None, *, seconds: float = WAIT_S
    ) -> None:
        """Waits until this number is left: `until_backlog(0)` waits for every subscription of this test's namespace."""
        until(
            lambda: self.backlog(topic, subscription) == messages,
            lambda: f"a backlog of {messages} (it is {self.backlog(topic, subscription)})",
            seconds,
        )

    def until_consumers(
        self, count: int, topic: str | None = None, subscription: str | None = None, *, seconds: float = WAIT_S
    ) -> None:
        """Waits until this number of consumers is connected."""

        def connected() -> int:
            return sum(len(found.consumers) for found in self._subscriptions(topic, subscription))

        until(lambda: connected() == count, lambda: f"{count} consumers (there are {connected()})", seconds)

    def _subscriptions(self, topic: str | None, subscription: str | None) -> list[Subscription]:
        full = topic if topic is None or "://" in topic else self.topic(topic)
        found = self.cluster.call(self.cluster.cluster.subscriptions_of(self.namespace))
        return [
            each
            for name, each in found
            if (full is None or name == full or name.startswith(f"{full}-partition-"))
            and (subscription is None or each.name == subscription)
        ]


async def _messages(subscriptions: Sequence[Subscription]) -> int:
    return sum([(await each.count_backlog()).messages for each in subscriptions])


def until(condition: Callable[[], bool], what: Callable[[], str], seconds: float) -> None:
    """Fails with `what` if the condition does not come true."""
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise AssertionError(f"waited {seconds:g} s in vain for {what()}")
        time.sleep(_POLL_S)
