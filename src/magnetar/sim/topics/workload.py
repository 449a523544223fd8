"""What happens in a world of topics: producers and consumers at work, and an operator who moves topics.

Move:      another broker shall serve a topic. The old one is told soon, or late, or stands still, or is killed. A
           broker that is not told continues, until it meets the new owner's fence.
"""

from __future__ import annotations

import asyncio
from contextlib import suppress
from dataclasses import dataclass
from random import Random

from magnetar.errors import MagnetarError
from magnetar.names import TopicName
from magnetar.sim.devices.device import Crash
from magnetar.sim.seeds import seeded
from magnetar.sim.topics.apps import ConsumerApp, ProducerApp
from magnetar.sim.topics.cluster import BrokerNode, TopicCluster
from magnetar.sim.topics.compacting import compact
from magnetar.sim.topics.watch import TopicWatch

_NEVER_S = 1_000.0
_LOAD_LIMIT_S = 30.0


@dataclass(slots=True)
class Topic:
    name: str
    watch: TopicWatch
    owner: str

    @property
    def ledger_id(self) -> int | None:
        known = self.watch.chains.get(self.name)
        return known.spans[-1].ledger_id if known is not None and known.spans else None


class TopicWorkload:
    def __init__(self, cluster: TopicCluster, watch: TopicWatch) -> None:
        self.cluster = cluster
        self.options = cluster.topic_options
        self.watch = watch
        self.random: Random = seeded(f"{self.options.base.seed}/workload")
        self.topics = [Topic(name, watch, cluster.board.owners[name]) for name in self.options.topic_names]
        self.producers: list[ProducerApp] = []
        self.consumers: list[ConsumerApp] = []

    def begin(self) -> None:
        for number, topic in enumerate(self.topics):
            for subscription in self.options.subscriptions:
                self._add_consumers(number, topic, subscription)
            for which in range(self.options.producers):
                self._add_producer(f"producer-{number}-{which}", topic)

    def on_healed(self) -> None:
        """Producers and consumers are told to end when topics are served again (scenario.py)."""

    def _add_producer(self, name: str, topic: Topic) -> None:
        sends = self.watch.told.add_producer(topic.name, name, self.options.keys)
        app = ProducerApp(sends, self.options, self.watch, self._random(name))
        self.producers.append(app)
        self.cluster.add_app(name, app.run)

    def _add_consumers(self, number: int, topic: Topic, subscription: str) -> None:
        progress = self.watch.told.add_subscription(topic.name, subscription)
        for which in range(self.options.consumers):
            name = f"{subscription}-{number}-{which}"
            app = ConsumerApp(name, progress, self.options, self.watch, self._random(name))
            self.consumers.append(app)
            self.cluster.add_app(name, app.run)

    def _random(self, purpose: str) -> Random:
        return seeded(f"{self.options.base.seed}/workload/{purpose}")

    # --- the operator -------------------------------------------------------------------------------------------------

    async def direct(self, until_s: float) -> None:
        loop = self.cluster.world.loop
        gap_s = self.options.base.takeover_gap_s * 2 / len(self.topics)
        while loop.now < until_s:
            await asyncio.sleep(min(self.random.expovariate(1 / gap_s), 0.7))
            self.take_over(self.random.choice(self.topics))
            if self.options.compacts:
                self._compact(self.random.choice(self.topics))

    def _compact(self, topic: Topic) -> None:
        node = self.cluster.brokers[topic.owner]
        if node.broker is not None:
            self.cluster.spawn(node, self._compact_by(node, topic.name), f"{node.name} compacts {topic.name}")

    async def _compact_by(self, node: BrokerNode, topic: str) -> None:
        with suppress(MagnetarError, TimeoutError):
            await compact(self.cluster, node, topic)

    def take_over(self, topic: Topic, *, by: str | None = None) -> str | None:
        """Another broker gets the topic; None if none is there."""
        able = [name for name in self.cluster.running_owners() if name == by or (by is None and name != topic.owner)]
        if not able:
            return None
        random = self.random
        old, new = topic.owner, random.choice(able)
        fate = "left alone" if by is not None else self._fate()
        self.watch.note(f"{topic.name} goes from {old} to {new}; the old one is {fate}")
        self.watch.counters["take-overs"] += 1
        topic.owner = new
        after_s = 0.03 * random.random() if fate == "told" else random.choice((0.1, 0.5, _NEVER_S)) * random.random()
        self.cluster.board.move(topic.name, new, tell_old_after_s=after_s)
        self._befall(old, fate)
        if random.random() < 0.7:
            self.load_soon(topic)
        return new

    def load_soon(self, topic: Topic) -> None:
        """By its owner, which runs."""
        node = self.cluster.brokers[topic.owner]
        self.cluster.spawn(node, self._load(node, topic), f"{node.name} loads {topic.name}")

    def _fate(self) -> str:
        dice = self.random.random()
        if dice < self.options.informed:
            return "told"
        return self.random.choice(("left alone", "left alone", "paused", "killed"))

    def _befall(self, broker: str, fate: str) -> None:
        cluster = self.cluster
        if fate == "killed" and cluster.world.process(broker) is not None:
            self.watch.struck("owner killed")
            cluster.crash(broker, Crash.KILL)
        elif fate == "paused" and cluster.pause(broker, self.random.choice((0.05, 0.3, 1.0)) * self.random.random()):
            self.watch.struck("owner paused")

    async def _load(self, node: BrokerNode, topic: Topic) -> None:
        """As if a client asked for it at once."""
        await asyncio.sleep(0.03 * self.random.random())
        if node.broker is None:
            return
        try:
            async with asyncio.timeout(_LOAD_LIMIT_S) as limit:
                await node.broker.service.topic(TopicName.parse(topic.name), create=True)
        except (MagnetarError, TimeoutError) as error:
            self.watch.note(f"{node.name} did not load {topic.name}: {error}")
            if limit.expired():
                self.watch.violated("V2", f"{node.name} has not loaded {topic.name} within {_LOAD_LIMIT_S:g} s")
