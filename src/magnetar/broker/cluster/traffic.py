"""Traffic: measures the load of this broker: what goes in and out of its bundles, and the resources of its process.

The counters of topics and consumers exist anyway; a measurement reads each of them once, in slices, and nothing is done
for a message. What a consumer received between the last measurement and its end is not counted.
"""

from __future__ import annotations

import asyncio
import bisect
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import TypeAlias

from magnetar.broker.cluster.load_report import Amount, BundleStats, Usage
from magnetar.broker.resources.bundles import NamespaceBundle
from magnetar.broker.topics.registry import Topics
from magnetar.broker.topics.topic import Topic
from magnetar.names import NamespaceName, TopicName
from magnetar.runtime.metrics import ProcessUsage
from magnetar.runtime.slices import Slices

_Counts: TypeAlias = dict[object, tuple[int, int]]
"""Topic or consumer → messages and bytes so far."""


class TopicTraffic:
    """Measures the loaded topics. Must be made on the loop."""

    def __init__(self, topics: Topics, slices: Slices) -> None:
        self._topics = topics
        self._slices = slices
        self._counts: _Counts = {}
        self._measured_s = asyncio.get_running_loop().time()

    async def measure(self, bundles: Iterable[NamespaceBundle]) -> Mapping[NamespaceBundle, BundleStats]:
        """Returns the traffic of each of these bundles since the call before."""
        found = {bundle: _Sum() for bundle in bundles}
        bundle_of = _finder(found)
        now_s, counts = asyncio.get_running_loop().time(), _Counts()
        for topic in self._topics.loaded():
            bundle = bundle_of(topic.name)
            if bundle is not None:
                self._add(found[bundle], topic, counts)
            await self._slices.turn()
        seconds = max(now_s - self._measured_s, 0.001)
        self._counts, self._measured_s = counts, now_s
        return {bundle: each.per_second(seconds) for bundle, each in found.items()}

    def _add(self, to: _Sum, topic: Topic, counts: _Counts) -> None:
        published = topic.publisher.messages_in, topic.publisher.bytes_in
        to.messages_in, to.bytes_in = self._plus_new(to.messages_in, to.bytes_in, topic, published, counts)
        for subscription in topic.subscriptions.values():
            for consumer in subscription.consumers:
                delivered = consumer.delivered_messages, consumer.delivered_bytes
                to.messages_out, to.bytes_out = self._plus_new(
                    to.messages_out, to.bytes_out, consumer, delivered, counts
                )
                to.consumers += 1
        to.producers += len(topic.producers)
        to.topics += 1

    def _plus_new(
        self, messages: int, size: int, owner: object, total: tuple[int, int], counts: _Counts
    ) -> tuple[int, int]:
        before = self._counts.get(owner, (0, 0))
        counts[owner] = total
        return messages + total[0] - before[0], size + total[1] - before[1]


@dataclass(slots=True)
class _Sum:
    messages_in: int = 0
    bytes_in: int = 0
    messages_out: int = 0
    bytes_out: int = 0
    consumers: int = 0
    producers: int = 0
    topics: int = 0

    def per_second(self, seconds: float) -> BundleStats:
        return BundleStats(
            self.messages_in / seconds,
            self.bytes_in / seconds,
            self.messages_out / seconds,
            self.bytes_out / seconds,
            self.consumers,
            self.producers,
            self.topics,
        )


def _finder(bundles: Iterable[NamespaceBundle]) -> Callable[[TopicName], NamespaceBundle | None]:
    """Returns a function that finds the bundle of a topic, in few steps however many bundles there are."""
    of_namespace: dict[NamespaceName, list[NamespaceBundle]] = {}
    for bundle in sorted(bundles, key=lambda each: each.bundle.first):
        of_namespace.setdefault(bundle.namespace, []).append(bundle)

    def find(topic: TopicName) -> NamespaceBundle | None:
        candidates = of_namespace.get(topic.namespace, [])
        index = bisect.bisect_right(candidates, topic.bundle_hash, key=lambda each: each.bundle.first) - 1
        return candidates[index] if index >= 0 and topic in candidates[index] else None

    return find


def usage_of(process: ProcessUsage) -> Usage:
    """Returns the resources as a report has them. A broker's work is that of one thread, so a core is all that it can
    use. The network is not measured."""
    measured = process.measure()
    return Usage(
        cpu=Amount(round(measured.thread_percent, 2), 100.0),
        memory=Amount(round(measured.memory_mb, 1), round(measured.machine_mb, 1)),
    )
