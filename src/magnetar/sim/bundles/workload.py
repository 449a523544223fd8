"""What happens in a world of bundles: producers and consumers as in a world of topics, and bundles that move.

Move:      a bundle gets another owner. Its owner is asked to unload it, with or without a destination; or its session
           ends, and the next owner takes the bundle; or it is killed, or stands still past its session.
Operator:  sends requests meanwhile (operator.py).
Looking:   from the outside, what every broker serves is compared with what it owns, again and again (T6).
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Final

from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.sim.bundles.cluster import HTTP_PORT, BundleBroker, BundleCluster
from magnetar.sim.bundles.operator import OPERATOR, Operator
from magnetar.sim.bundles.watch import BundleWatch
from magnetar.sim.device import Crash
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.workload import Topic, TopicWorkload

_LOOK_S: Final = 0.1
_TRIES_MAX: Final = 20
_TRY_S: Final = 0.02
_LIMIT_S: Final = 30.0


class OwnedTopic(Topic):
    """Its owner is the broker that the metadata names, or the last one that it named."""

    __slots__ = ("_last", "_watch_of_bundles")

    def __init__(self, name: str, watch: BundleWatch, first: str) -> None:
        self._watch_of_bundles = watch
        self._last = first
        super().__init__(name, watch, first)

    @property
    def owner(self) -> str:
        generation = self._watch_of_bundles.owner_of(self.name)
        if generation is not None:
            self._last = generation.owner
        return self._last

    @owner.setter
    def owner(self, value: str) -> None:
        """The metadata alone says who it is."""


class BundleWorkload(TopicWorkload):
    cluster: BundleCluster
    watch: BundleWatch

    def __init__(self, cluster: BundleCluster, watch: BundleWatch) -> None:
        super().__init__(cluster, watch)
        names = list(cluster.brokers)
        self.topics = [OwnedTopic(topic.name, watch, names[0]) for topic in self.topics]
        self.operator = Operator(cluster, seeded(f"{self.options.base.seed}/operator"))
        self._looking: asyncio.Task[None] | None = None

    def begin(self) -> None:
        super().begin()
        self.cluster.add_app(OPERATOR, self.operator.run)
        self._looking = asyncio.get_running_loop().create_task(self._look_around(), name="look around")

    async def _look_around(self) -> None:
        while True:
            self.watch.tell("on_look_around", list(self.cluster.bundle_brokers.values()))
            await asyncio.sleep(_LOOK_S)

    def stop_looking(self) -> None:
        if self._looking is not None:
            self._looking.cancel()

    # --- moves --------------------------------------------------------------------------------------------------------

    async def direct(self, until_s: float) -> None:
        loop = self.cluster.world.loop
        gap_s = self.options.base.takeover_gap_s * 2 / len(self.topics)
        while loop.now < until_s:
            await asyncio.sleep(min(self.random.expovariate(1 / gap_s), 0.7))
            self.take_over(self.random.choice(self.topics))

    def take_over(self, topic: Topic, *, by: str | None = None) -> str | None:
        """Returns the broker that is to own the topic's bundle; None if none can."""
        old, random = topic.owner, self.random
        able = [name for name in self.cluster.running_owners() if name == by or (by is None and name != old)]
        if not able:
            return None
        new = random.choice(able)
        how = "expired" if by is not None else random.choice(("unloaded", "unloaded", "expired", "killed", "paused"))
        self.watch.note(f"{topic.name} goes from {old} to {new}; the old one is {how}")
        self.watch.counters["take-overs"] += 1
        if how == "unloaded":
            self._unload(old, new, topic)
            return new
        if how == "expired":
            self.cluster.expire(old)
        elif how == "killed" and self.cluster.world.process(old) is not None:
            self.cluster.crash(old, Crash.KILL)
        elif how == "paused":
            self.pause_past_session(old, 0.05 * random.random())
        self.take_soon(new, topic)
        return new

    def pause_past_session(self, name: str, unaware_s: float) -> None:
        """It stands still until its session has ended, and hears of that some time after it continues."""
        timeout_s = self.cluster.options.session_timeout_ms / 1000
        pause_s = timeout_s * (1 + 0.5 * self.random.random())
        if self.cluster.world.process(name) is not None:
            self.watch.struck("paused past the session")
            self.cluster.cut_for(name, pause_s + unaware_s)
            self.cluster.pause(name, 0.99 * pause_s)

    def _unload(self, old: str, new: str, topic: Topic) -> None:
        node = self.cluster.bundle_brokers[old]
        if node.ownership is not None:
            destination = f"{new}:{HTTP_PORT}" if self.random.random() < 0.7 else None
            self.cluster.spawn(node, self._unload_at(node, topic, destination), f"{old} unloads {topic.name}")

    async def _unload_at(self, node: BundleBroker, topic: Topic, destination: str | None) -> None:
        with suppress(MagnetarError, TimeoutError):
            async with asyncio.timeout(_LIMIT_S):
                if node.ownership is not None:
                    await node.ownership.unload(self.watch.bundle_of(TopicName.parse(topic.name)), destination)

    def take_soon(self, name: str, topic: Topic) -> None:
        node = self.cluster.bundle_brokers[name]
        if node.ownership is not None:
            self.cluster.spawn(node, self._take(node, topic), f"{name} takes {topic.name}")

    async def _take(self, node: BundleBroker, topic: Topic) -> None:
        """As if another broker had chosen this one, and clients came at once."""
        for _ in range(_TRIES_MAX):
            if node.ownership is None:
                return
            with suppress(MagnetarError):
                found = await node.ownership.owner_of(TopicName.parse(topic.name), is_authoritative=True)
                if found.is_here:
                    await self._load(node, topic)
                    return
            await asyncio.sleep(_TRY_S)
