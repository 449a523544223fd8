"""Names for producers without one: `cluster-n-m`, never given twice.

The store gives a number n to each broker that starts, and m counts up in the broker. With a name that is given twice,
deduplication would take one producer's messages for repetitions of another's.
"""

from __future__ import annotations

import itertools

from magnetar.broker.resources import paths
from magnetar.metadata.paths import name_of
from magnetar.metadata.store import CreateMode, MetadataStore


class ProducerNames:
    def __init__(self, cluster: str, instance: int) -> None:
        self._prefix = f"{cluster}-{instance}"
        self._numbers = itertools.count()

    @classmethod
    async def open(cls, store: MetadataStore, cluster: str) -> ProducerNames:
        """Takes a number. An unknown outcome may skip a number, but never give one twice."""
        made = await store.create(f"{paths.PRODUCER_NAMES}/-", mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=True)
        return cls(cluster, int(name_of(made).lstrip("-")))

    def next(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"
