"""Names for producers that bring none: `cluster-n-m`, never given twice.

n is a number that the store gives to each broker that starts, m counts up in the broker. A name that is given twice
would let deduplication take one producer's messages for the repetitions of another's.
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
        """An outcome that is unknown may skip a number, never give one twice."""
        made = await store.create(f"{paths.PRODUCER_NAMES}/-", mode=CreateMode.EPHEMERAL_SEQUENTIAL, make_parents=True)
        return cls(cluster, int(name_of(made).lstrip("-")))

    def next(self) -> str:
        return f"{self._prefix}-{next(self._numbers)}"
