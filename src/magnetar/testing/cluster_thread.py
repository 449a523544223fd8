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
from magnetar.names import TopicName
from magnetar.testing.cluster import PulsarCluster

T = TypeVar("T")

START_TIMEOUT_S: Final = 60.0
CALL_TIMEOUT_S: Final = 60.0
WAIT_S: Final = 20.0
_POLL_S: Final = 0.01


class MagnetarCluster:
    """`with` starts and ends it."""

    def __init__(
        self,
        bookies: int = 1,
        *,
        brokers: int = 1,
        directory: Path | None = None,
        settings: Iterable[str] = (),
        label: str = "t",
    ) -> None:
        """`label` begins the names of the tests' namespaces."""
        self.cluster = PulsarCluster(bookies, brokers=brokers, directory=directory, settings=settings)
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
        self.kafka_bootstrap = self.cluster.kafka_bootstrap
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

    async def _on_loop(self, work: Callable[[], object]) -> None:
        work()

    # --- members ------------------------------------------------------------------------------------------------------

    @property
    def bookies(self) -> list[str]:
        """Their ids."""
        return [str(bookie_id) for bookie_id in self.cluster.bookies.bookie_ids]

    @property
    def brokers(self) -> list[str]:
        """Their ids: `host:port` of their HTTP side."""
        return [node.broker_id for node in self.cluster.brokers]

    def owner_of(self, topic: str) -> str:
        """The id of the broker that serves the topic, which gets one by this."""
        return self.call(self.cluster.owner_of(TopicName.parse(topic))).broker_id

    def kill(self, member: int | str) -> None:
        """By a bookie's number or a member's id: its connections break without an answer, and nothing is stored."""
        self.call(self.cluster.kill(member))

    def restart(self, member: int | str) -> None:
        """A bookie continues on what it had on disk."""
        self.call(self.cluster.restart(member))

    def expire_session(self, member: int | str) -> None:
        self.call(self.cluster.expire_session(member))

    def pause(self, broker: str) -> None:
        self.call(self._on_loop(lambda: self.cluster.pause(broker)))

    def resume(self, broker: str) -> None:
        self.call(self._on_loop(lambda: self.cluster.resume(broker)))

    def partition(self, one: int | str, other: int | str) -> None:
        """Lets nothing pass between a broker and a bookie, or a member and "metadata"."""
        self.call(self._on_loop(lambda: self.cluster.partition(one, other)))

    def heal(self) -> None:
        """Ends all partitions."""
        self.call(self._on_loop(self.cluster.heal))

    def make_whole(self) -> None:
        """Ends partitions and pauses, and starts the members that were killed."""
        self.call(self.cluster.make_whole())

    # --- tests --------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def for_test(self) -> Iterator[MagnetarTest]:
        """With a new namespace; in the end the cluster is made whole, and unused topics are deleted."""
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

    @property
    def brokers(self) -> list[str]:
        return self.cluster.brokers

    def owner_of(self, topic: str = "topic") -> str:
        """The id of the broker that serves this test's topic, which gets one by this."""
        return self.cluster.owner_of(self._full(topic))

    # The faults end when the test ends, at the latest.

    def kill(self, member: int | str) -> None:
        """By a bookie's number, or the id of a bookie or broker."""
        self.cluster.kill(member)

    def restart(self, member: int | str) -> None:
        self.cluster.restart(member)

    def expire_session(self, member: int | str) -> None:
        """Ends the member's session with the metadata store, which drops what was registered by it."""
        self.cluster.expire_session(member)

    def pause(self, broker: str) -> None:
        """Exchanges nothing with the broker until `resume`; its connections stay open."""
        self.cluster.pause(broker)

    def resume(self, broker: str) -> None:
        self.cluster.resume(broker)

    def partition(self, one: int | str, other: int | str) -> None:
        """Lets nothing pass between a broker and a bookie, or between a member and "metadata"."""
        self.cluster.partition(one, other)

    def heal(self) -> None:
        """Ends all partitions."""
        self.cluster.heal()

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

    def _full(self, topic: str) -> str:
        return topic if "://" in topic else self.topic(topic)

    def _subscriptions(self, topic: str | None, subscription: str | None) -> list[Subscription]:
        full = None if topic is None else self._full(topic)
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
