"""The load of the demonstration: on each topic one producer and one consumer of the official client."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Any

from demo.consumer import DemoConsumer
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import wait_for
from workloads.pulsar_load import END_TIMEOUT_S, NumberedLoad


class Traffic:
    """Sends and receives from the moment it is made, until `finish`."""

    def __init__(self, client: Any, topics: Sequence[str], subscription: str, *, rate: int, size: int) -> None:
        """`rate` is that of each topic, in messages per second. A producer has the name of its topic."""
        self._consumers = [DemoConsumer(client, topic, subscription) for topic in topics]
        self._loads = [NumberedLoad(client, topic, rate=rate, size=size, name=topic) for topic in topics]

    @property
    def sent(self) -> int:
        return sum(load.sent for load in self._loads)

    @property
    def acknowledged(self) -> int:
        return sum(load.acknowledged for load in self._loads)

    @property
    def unanswered(self) -> int:
        return sum(load.unanswered for load in self._loads)

    @property
    def received(self) -> int:
        return sum(len(consumer.received) for consumer in self._consumers)

    @property
    def longest_wait_s(self) -> float:
        """Of any producer, between two acknowledgements, since `forget_waits`."""
        return max(load.longest_wait_s for load in self._loads)

    def forget_waits(self) -> None:
        for load in self._loads:
            load.longest_wait_s = 0.0

    def wait_acknowledged(self, more: int, check: Callable[[], None], timeout: float) -> None:
        """Returns when this number of messages that are sent from now on is acknowledged on each topic, or raises
        TimeoutError. `check` raises if waiting has become useless."""
        wanted = [load.sent + more for load in self._loads]

        def have_continued() -> bool:
            check()
            self._raise_if_refused()
            return all(load.acknowledged >= number for load, number in zip(self._loads, wanted, strict=True))

        wait_for(have_continued, what=f"the acknowledgement of {more:,} messages on every topic", timeout=timeout)

    def finish(self) -> None:
        """Returns when everything that was sent is acknowledged, or raises TimeoutError. What is not received within a
        minute is left to the audit, which finds out why."""
        for load in self._loads:
            load.finish()
        self._raise_if_refused()
        with suppress(TimeoutError):
            wait_for(lambda: self.received >= self.sent, what="the receipt of every message", timeout=END_TIMEOUT_S)
        for consumer in self._consumers:
            consumer.end()

    def _raise_if_refused(self) -> None:
        for load in self._loads:
            if load.failures:
                raise ProcessFailedError(f"the official client could not publish: {load.failures[0]}")
