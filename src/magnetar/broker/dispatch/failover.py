"""Which consumer of a Failover subscription is the active one: a pure choice that every broker makes alike.

Only consumers of the highest priority (the lowest number) are candidates, in the order of their names. A partition
takes the one its index points at, so that the partitions of a topic are spread; a topic without partitions takes the
one that follows it on a ring of hashes, so that many topics are spread and one more consumer moves few of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import Final

from magnetar.broker.consumer import Consumer
from magnetar.broker.dispatch.hashing import murmur3_32

_POINTS_PER_CONSUMER: Final = 100


def choose_active(consumers: Sequence[Consumer], topic: str, partition: int, *, by_ring: bool) -> Consumer:
    """`partition` is −1 for a topic without partitions; `by_ring`: partitions are placed by the ring as well."""
    assert consumers
    highest = min(consumer.priority for consumer in consumers)
    candidates = sorted(
        (consumer for consumer in consumers if consumer.priority == highest), key=lambda consumer: consumer.name
    )
    if partition >= 0 and not by_ring:
        return candidates[partition % len(candidates)]
    return candidates[_index_on_ring(candidates, topic)]


def _index_on_ring(candidates: Sequence[Consumer], topic: str) -> int:
    ring: dict[int, int] = {}
    for index, consumer in enumerate(candidates):
        for point in range(_POINTS_PER_CONSUMER):
            ring[murmur3_32(f"{consumer.name}{point}".encode())] = index
    points = sorted(ring)
    at = bisect_left(points, murmur3_32(topic.encode()))
    return ring[points[at % len(points)]]
