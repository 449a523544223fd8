"""The nemesis of a world of topics: that of ledgers (ledgers/nemesis.py), and brokers that are killed."""

from __future__ import annotations

from random import Random

from magnetar.sim.device import Crash
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.topics.workload import TopicWorkload


class TopicNemesis(Nemesis):
    def __init__(self, cluster: TopicCluster, workload: TopicWorkload, watch: TopicWatch) -> None:
        super().__init__(cluster, workload, watch)
        self._strikes["broker"] = self._kill_broker

    async def _kill_broker(self, random: Random) -> None:
        if names := self.cluster.running_owners():
            self.watch.struck("broker killed")
            self.cluster.crash(random.choice(names), Crash.KILL)
