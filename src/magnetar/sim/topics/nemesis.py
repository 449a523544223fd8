"""The nemesis of a world of topics: that of ledgers (ledgers/nemesis.py), brokers that are killed, and aimed at the
opening of a topic, brokers that are overtaken.

Overtaking: a new owner stands still between its claim on a topic and the reading of the cursors, for long enough that
            the next one serves the topic and hears acknowledgements. Uniform pauses meet those few milliseconds once
            in hundreds of seeds.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from magnetar.sim.device import Crash
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.topics.workload import TopicWorkload

_LOOKS_MAX: Final = 200
_LOOK_S: Final = 0.001


class TopicNemesis(Nemesis):
    def __init__(self, cluster: TopicCluster, workload: TopicWorkload, watch: TopicWatch) -> None:
        super().__init__(cluster, workload, watch)
        self.watch: TopicWatch = watch
        self._contest = workload
        self._strikes["broker"] = self._kill_broker
        self._strikes["overtake"] = self._overtake

    async def _kill_broker(self, random: Random) -> None:
        if names := self.cluster.running_owners():
            self.watch.struck("broker killed")
            self.cluster.crash(random.choice(names), Crash.KILL)

    async def _overtake(self, random: Random) -> None:
        topic = random.choice(self._contest.topics)
        slow = self._contest.take_over(topic)
        if slow is None or not await self._has_claimed(topic.name):
            return
        others = [name for name in self.cluster.running_owners() if name != slow]
        if others and self.cluster.pause(slow, random.choice((0.2, 0.6)) * random.random()):
            self.watch.struck("overtaken while it loaded")
            self._contest.take_over(topic, by=random.choice(others))

    async def _has_claimed(self, topic: str) -> bool:
        """Somebody, and it is the new owner nearly always, has just made its own ledger the last of the topic."""
        before = self.watch.chains.get(topic)
        for _ in range(_LOOKS_MAX):
            if self.watch.chains.get(topic) is not before:
                return True
            await asyncio.sleep(_LOOK_S)
        return False
