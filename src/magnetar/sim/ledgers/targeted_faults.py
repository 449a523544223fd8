"""Faults that are aimed at a take-over: what uniform faults would meet once in a million years.

Drill:     the owner is paused between two appends, one bookie is hidden from the successor, the successor takes over,
           other bookies crash, the owner continues.
Blackout:  most bookies lose power at once; now and then right after a take-over.
Fates:     during a take-over each link of the successor and of the old owner has a fate of its own.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Protocol, TypeAlias

from magnetar.sim.devices.device import Crash
from magnetar.sim.ledgers.cluster import Cluster
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.network.link import LinkDelay

Strike: TypeAlias = Callable[[Random], Coroutine[Any, Any, None]]


class Owned(Protocol):
    """Something that one node after the other writes to, each to ledgers of its own."""

    @property
    def ledger_id(self) -> int | None:
        """The last one."""

    @property
    def owner(self) -> str: ...


class Contested(Protocol):
    """The workload, as far as it is aimed at."""

    @property
    def topics(self) -> Sequence[Owned]: ...

    def take_over(self, topic: Any, *, by: str | None = None) -> object: ...


class TargetedFaults:
    def __init__(self, cluster: Cluster, workload: Contested, watch: Watch) -> None:
        self.cluster = cluster
        self.workload = workload
        self.watch = watch

    # --- the fail-over drill ------------------------------------------------------------------------------------------

    async def drill(self, random: Random) -> None:
        topic = random.choice(self.workload.topics)
        members = self._members(topic)
        successor = self._successor(topic, random)
        if not members or successor is None:
            return
        self.watch.struck("fail-over drill")
        network = self.cluster.world.network
        hidden = random.choice(members)
        paused_s = random.uniform(0.05, 0.5)
        self.cluster.pause(topic.owner, paused_s)
        network.block_both(successor, hidden)
        self.workload.take_over(topic, by=successor)
        await asyncio.sleep(random.choice((0.0, 0.005, 0.03)) * random.random())
        others = [name for name in members if name != hidden]
        for name in random.sample(others, random.randint(0, len(others))):
            if self.cluster.world.process(name) is not None:
                kind = random.choice((Crash.KILL, Crash.POWER_LOSS, Crash.DROP_UNSYNCED))
                self.cluster.crash(name, kind, restart_s=random.choice((0.002, 0.02, 0.1)))
        await asyncio.sleep(paused_s)
        network.heal(successor, hidden)

    # --- blackout -----------------------------------------------------------------------------------------------------

    async def blackout(self, random: Random) -> None:
        if random.random() < 0.5:
            self.workload.take_over(random.choice(self.workload.topics))
            await asyncio.sleep(0.02 * random.random())
        self.watch.struck("blackout")
        names = [name for name in self.cluster.bookies if self.cluster.world.process(name) is not None]
        struck = random.sample(names, max(1, round(0.8 * len(names)))) if names else []
        for name in struck:
            self.cluster.crash(name, random.choice((Crash.POWER_LOSS, Crash.DROP_UNSYNCED)))
        await asyncio.sleep(0.3)

    # --- a fate for every link ----------------------------------------------------------------------------------------

    async def fates(self, random: Random) -> None:
        topic = random.choice(self.workload.topics)
        members = self._members(topic)
        successor = self._successor(topic, random)
        if not members or successor is None:
            return
        self.watch.struck("fates of links")
        network = self.cluster.world.network
        for client in (successor, topic.owner):
            for bookie in members:
                self._give_fate(client, bookie, random)
        self.workload.take_over(topic, by=successor)
        await asyncio.sleep(random.choice((0.02, 0.1, 0.3)) * random.random())
        for client in (successor, topic.owner):
            for bookie in members:
                network.link(client, bookie).delay = network.link(bookie, client).delay = None
        network.heal(successor, topic.owner)

    def _give_fate(self, client: str, bookie: str, random: Random) -> None:
        network = self.cluster.world.network
        fate = random.choice(("well", "well", "deaf", "mute", "slow there", "slow back", "reset"))
        slow = LinkDelay(0.01, 0.05, tail=0.3, tail_max_s=0.3)
        if fate == "deaf":
            network.block(client, bookie)
        elif fate == "mute":
            network.block(bookie, client)
        elif fate == "slow there":
            network.link(client, bookie).delay = slow
        elif fate == "slow back":
            network.link(bookie, client).delay = slow
        elif fate == "reset":
            network.reset(client, bookie)

    # --- who is concerned ---------------------------------------------------------------------------------------------

    def _members(self, topic: Owned) -> list[str]:
        """Nodes of the bookies that the topic's last ledger is written to."""
        known = self.watch.ledgers.get(topic.ledger_id) if topic.ledger_id is not None else None
        if known is None:
            return []
        return [self.watch.bookies[bookie].name for bookie in known.value.fragments[-1].ensemble]

    def _successor(self, topic: Owned, random: Random) -> str | None:
        names = [name for name in self.cluster.running_owners() if name != topic.owner]
        return random.choice(names) if names else None
