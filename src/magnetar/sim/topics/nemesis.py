"""The nemesis of a world of topics: that of ledgers (sim/ledgers/nemesis.py), brokers that are killed, and aimed at the
opening of a topic, brokers that are overtaken.

Overtaking: a new owner stands still between its claim on a topic and the reading of the cursors, for long enough that
            the next one serves the topic and hears acknowledgements. Uniform pauses meet those few milliseconds once
            in hundreds of seeds.
Leaving:    a broker is stopped in order and killed in the middle of it, often right after a change that it made in the
            metadata and before it heard of that; the next life, or another broker, opens the same topics, and is killed
            in that, too.
"""

from __future__ import annotations

import asyncio
from random import Random
from typing import Final

from magnetar.sim.device import Crash
from magnetar.sim.ledgers.hostile import Target, Weapon, garbage, impossible_length, unfinished_frame
from magnetar.sim.ledgers.nemesis import Nemesis
from magnetar.sim.topics.cluster import TopicCluster
from magnetar.sim.topics.options import PORT
from magnetar.sim.topics.watch import TopicWatch
from magnetar.sim.topics.workload import TopicWorkload
from magnetar.wire.pulsar.encode import PING, encode_command
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

_LOOKS_MAX: Final = 200
_LOOK_S: Final = 0.001
_STOP_S: Final = 1.0  # Longer than most stops and loads take.
_RESTART_S: Final = 0.002
_STOP_WRITES_MAX: Final = 8  # Changes of the metadata that the stop of a broker with one or two topics makes, or …
_LOAD_WRITES_MAX: Final = 14  # … the load of a topic: ledgers recovered and made, the topic's node, cursors.
_STEP_S: Final = 0.000_1  # Less than an answer of the metadata takes: a broker is killed before it has heard it.


class TopicNemesis(Nemesis):
    cluster: TopicCluster
    workload: TopicWorkload
    watch: TopicWatch

    def __init__(self, cluster: TopicCluster, workload: TopicWorkload, watch: TopicWatch) -> None:
        super().__init__(cluster, workload, watch)
        self._writes = cluster.metadata.writes
        self._strikes["broker"] = self._kill_broker
        self._strikes["overtake"] = self._overtake
        self._strikes["leave"] = self._leave

    def targets(self) -> list[Target]:
        return [*super().targets(), *(Target(name, PORT, WEAPONS) for name in self.cluster.running_owners())]

    async def _kill_broker(self, random: Random) -> None:
        if names := self.cluster.running_owners():
            self.watch.struck("broker killed")
            self.cluster.crash(random.choice(names), Crash.KILL)

    # --- crashes inside an orderly stop, and inside a start -----------------------------------------------------------

    async def _leave(self, random: Random) -> None:
        names = self.cluster.running_owners()
        if not names:
            return
        name = random.choice(names)
        self.watch.struck("broker stopped")
        self.cluster.brokers[name].leave()
        await self._wait_in_step(name, random, _STOP_WRITES_MAX)
        if self._crash_in_stop(name):
            self.watch.struck("broker killed in its stop")
        if random.random() < 0.5:
            self._hand_over(name, random)
        elif random.random() < 0.7:
            await self._crash_in_start(name, random)

    async def _wait_in_step(self, name: str, random: Random, writes_max: int) -> None:
        """For some time; or until it has made a number of changes of the metadata."""
        writes, until_s = self._writes, self.watch.now + random.choice((0.002, 0.01, 0.05)) * random.random()
        wanted = writes[name] + random.randint(1, writes_max) if random.random() < 0.7 else None
        if wanted is not None:
            until_s = self.watch.now + _STOP_S
        while self.cluster.world.process(name) is not None and self.watch.now < until_s:
            if wanted is not None and writes[name] >= wanted:
                return
            await asyncio.sleep(_STEP_S)

    def _crash_in_stop(self, name: str) -> bool:
        node = self.cluster.brokers[name]
        if self.cluster.world.process(name) is None or not node.is_leaving:
            return False
        self.cluster.crash(name, Crash.KILL, restart_s=_RESTART_S)
        return True

    def _hand_over(self, name: str, random: Random) -> None:
        """Other brokers open what it had."""
        others = [other for other in self.cluster.running_owners() if other != name]
        for topic in self.workload.topics:
            if topic.owner == name and others:
                self.workload.take_over(topic, by=random.choice(others))

    async def _crash_in_start(self, name: str, random: Random) -> None:
        """Its next life is killed while it loads its topics."""
        until_s = self.watch.now + _STOP_S
        while not self._is_up(name):
            await asyncio.sleep(_LOOK_S)
            if self.watch.now >= until_s:
                return
        for topic in self.workload.topics:
            if topic.owner == name:
                self.workload.load_soon(topic)
        while self._is_up(name) and not self._loads(name):
            await asyncio.sleep(_STEP_S)
            if self.watch.now >= until_s:
                return
        await self._wait_in_step(name, random, _LOAD_WRITES_MAX)
        if self._loads(name):
            self.watch.struck("broker killed while it loaded")
            self.cluster.crash(name, Crash.KILL, restart_s=_RESTART_S)

    def _is_up(self, name: str) -> bool:
        return self.cluster.brokers[name].broker is not None

    def _loads(self, name: str) -> int:
        broker = self.cluster.brokers[name].broker
        return broker.service.topics.statistics().loading if broker is not None else 0

    # --- overtaking ---------------------------------------------------------------------------------------------------

    async def _overtake(self, random: Random) -> None:
        topic = random.choice(self.workload.topics)
        slow = self.workload.take_over(topic)
        if slow is None or not await self._has_claimed(topic.name):
            return
        others = [name for name in self.cluster.running_owners() if name != slow]
        if others and self.cluster.pause(slow, random.choice((0.2, 0.6)) * random.random()):
            self.watch.struck("overtaken while it loaded")
            self.workload.take_over(topic, by=random.choice(others))

    async def _has_claimed(self, topic: str) -> bool:
        """A broker, nearly always the new owner, has just made its own ledger the last of the topic."""
        before = self.watch.chains.get(topic)
        for _ in range(_LOOKS_MAX):
            if self.watch.chains.get(topic) is not before:
                return True
            await asyncio.sleep(_LOOK_S)
        return False


# --- what a hostile client sends to brokers ---------------------------------------------------------------------------


def _connect() -> bytes:
    command = BaseCommand(type=BaseCommand.CONNECT)
    command.connect.client_version = "hostile"
    command.connect.protocol_version = 21
    return encode_command(command)


def _lookups(random: Random) -> bytes:
    """Of topics that do not exist, and of names that are none."""
    frames = [_connect()]
    for number in range(random.choice((1, 20, 100))):
        command = BaseCommand(type=BaseCommand.LOOKUP)
        command.lookupTopic.topic = random.choice(("persistent://no/where/t", "?", "x" * 300))
        command.lookupTopic.request_id = number
        frames.append(encode_command(command))
    return b"".join(frames)


def _pings(random: Random) -> bytes:
    return _connect() + PING * random.choice((1, 100, 2_000))


def _unfinished(random: Random) -> bytes:
    return _connect() + unfinished_frame(random, bytes(4))


WEAPONS: Final = (
    Weapon("garbage", garbage),
    Weapon("garbage after a handshake", lambda random: _connect() + garbage(random)),
    Weapon("an impossible length", impossible_length),
    Weapon("a frame that never ends", _unfinished, is_unfinished=True),
    Weapon("a flood of lookups", _lookups),
    Weapon("a flood of pings", _pings),
)
