"""The nemesis: breaks the world of one seed, class by class (options.FAULTS), within what is promised.

- atlas: faults that destroy or corrupt what was synced strike only the seed's victims, of which there are fewer than
  Qa. Everything else may strike any process, at any time.
- classes: each has a task and a generator of its own: one that is taken away does not move the others' choices.
- aimed: three classes go for a take-over, which uniform faults would meet once in a million years (TargetedFaults).
  Drill: the owner is paused between two appends, one bookie is hidden from the successor, the successor takes over,
  other bookies crash, the owner continues. Blackout: most bookies lose power at once; now and then right after a
  take-over. Fates: during a take-over each link of the successor and of the old owner has a fate of its own.
- end: `stop` heals everything; victims may stay away for good.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Sequence
from random import Random
from typing import Any, Final, Protocol, TypeAlias

from magnetar.errors import MetadataError
from magnetar.ids import BookieId
from magnetar.sim.device import Crash, Fault, Write
from magnetar.sim.ledgers.cluster import BookieNode, Cluster
from magnetar.sim.ledgers.hostile import NAME as HOSTILE
from magnetar.sim.ledgers.hostile import Hostile, Target, bookie_weapons
from magnetar.sim.ledgers.invariants import DAMAGE
from magnetar.sim.ledgers.options import PORT
from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.network import LinkDelay
from magnetar.sim.seeds import seeded
from magnetar.storage.journal.format import FILE_HEADER_BYTES, GROUP_HEADER_BYTES, decode_group_header, is_intact

# --- faults that are aimed at a take-over -----------------------------------------------------------------------------


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


# --- the nemesis ------------------------------------------------------------------------------------------------------


_STOP_S: Final = 1.0  # Longer than most stops take.
_RESTART_S: Final = 0.002  # Until a process that was killed in a stop or a start begins again.
_REPAIRS_MAX: Final = 4  # For one bookie in one seed.
_REFUSALS_MAX: Final = 50  # Starts that a disk in ruins refuses, before its bookie is given up.

_REFUSALS = {
    Fault.READ_ERROR: 0.002,
    Fault.WRITE_ERROR: 0.001,
    Fault.CUT_ERROR: 0.01,
    Fault.SYNC_ERROR: 0.001,
}
_LOG_READ_ERROR: Final = 0.03  # Logs are read seldom: most entries are still in a cache when they are read.
_LIES = {Fault.BIT_FLIP: 0.002, Fault.LATENT_SECTOR: 0.001, Fault.MISDIRECTED_WRITE: 0.001}


class Nemesis:
    def __init__(self, cluster: Cluster, workload: Contested, watch: Watch) -> None:
        self.cluster = cluster
        self.options = cluster.options
        self.workload = workload
        self.watch = watch
        self.victims = self._random("victims").sample(list(cluster.bookies), self.options.victims)
        self._tasks: list[asyncio.Task[None]] = []
        self._targeted = TargetedFaults(cluster, workload, watch)
        self._strikes: dict[str, Strike] = {
            "kill": self._kill,
            "power": self._power,
            "blackout": self._targeted.blackout,
            "pause": self._pause,
            "client": self._client,
            "part": self._part,
            "reset": self._reset,
            "slow": self._slow,
            "disk": self._full,
            "rot": self._rot,
            "loss": self._loss,
            "meta": self._meta,
            "clock": self._clock,
            "drill": self._targeted.drill,
            "fates": self._targeted.fates,
            "cpu": self._starve,
            "stop": self._stop,
            "ruin": self._ruin,
            "hostile": self._attack,
        }
        self.hostile: Hostile | None = None
        if "hostile" in self.options.faults:
            self.hostile = Hostile(cluster.world, watch, self.targets)
            cluster.know_address(HOSTILE)
        self._operator_random = self._random("operator")
        self._repairs: dict[str, int] = {}
        self._refusals: dict[str, int] = {}
        cluster.operator = self._operate

    def _random(self, purpose: str) -> Random:
        return seeded(f"{self.options.seed}/nemesis/{purpose}")

    async def run(self, until_s: float) -> None:
        self._set_rates()
        loop = self.cluster.world.loop
        for name in self.options.faults:
            if name in self._strikes:
                self._tasks.append(loop.create_task(self._strike_again(name, until_s), name=f"nemesis: {name}"))
        for task in self._tasks:
            await task

    async def _strike_again(self, name: str, until_s: float) -> None:
        loop, random = self.cluster.world.loop, self._random(name)
        while True:
            await asyncio.sleep(min(random.expovariate(1 / self.options.fault_gap_s), 1.0))
            if loop.now >= until_s:
                return
            await self._strikes[name](random)

    def _set_rates(self) -> None:
        random, faults = self._random("rates"), self.options.faults
        for node in self.cluster.bookies.values():
            for device in node.watch.image.devices:
                scale = random.choice((0.3, 1.0, 3.0))
                if "stall" in faults:
                    device.faults.rates[Fault.STALL] = 0.003 * scale
                if "disk" in faults:
                    device.faults.rates.update({fault: rate * scale for fault, rate in _REFUSALS.items()})
                    if device in node.watch.image.directories:
                        device.faults.rates[Fault.READ_ERROR] = _LOG_READ_ERROR * scale
                is_noticed = device in node.watch.image.directories or not self._one_denial_counts
                if "rot" in faults and node.name in self.victims and is_noticed:
                    device.faults.rates.update({fault: rate * scale for fault, rate in _LIES.items()})

    # --- processes ----------------------------------------------------------------------------------------------------

    def _running(self, random: Random) -> str | None:
        names = self.cluster.running_bookies()
        return random.choice(names) if names else None

    async def _kill(self, random: Random) -> None:
        if (name := self._running(random)) is not None:
            self.watch.struck("kill")
            self.cluster.crash(name, Crash.KILL)

    async def _power(self, random: Random) -> None:
        """Also in the middle of a start."""
        name = random.choice(list(self.cluster.bookies))
        if self.cluster.world.process(name) is not None:
            self.watch.struck("power loss")
            self.cluster.crash(name, random.choice((Crash.POWER_LOSS, Crash.POWER_LOSS, Crash.DROP_UNSYNCED)))

    async def _stop(self, random: Random) -> None:
        """Crashes inside an orderly stop and inside a start; what these lives have read must outlive a power loss."""
        if (name := self._running(random)) is None:
            return
        self.watch.struck("stop")
        self.cluster.bookies[name].stopping.set()
        await self._wait_in_stop(name, random)
        if self._crash_unless_it_serves(name, random.choice((Crash.KILL, Crash.KILL, Crash.POWER_LOSS))):
            self.watch.struck("crash in a stop")
        if random.random() < 0.5:
            await asyncio.sleep(_RESTART_S + random.choice((0.005, 0.05)) * random.random())
            if self._crash_unless_it_serves(name, Crash.KILL):
                self.watch.struck("crash in a start")
        await asyncio.sleep(random.choice((0.05, 0.3)) * random.random())
        if self.cluster.world.process(name) is not None:
            self.watch.struck("power loss")
            self.cluster.crash(name, random.choice((Crash.POWER_LOSS, Crash.DROP_UNSYNCED)))

    async def _wait_in_stop(self, name: str, random: Random) -> None:
        """For some time; or until a closing group is written and not synced, which uniform moments seldom meet."""
        node, is_aimed = self.cluster.bookies[name], random.random() < 0.5
        until_s = self.watch.now + (_STOP_S if is_aimed else random.choice((0.005, 0.02, 0.05)) * random.random())
        while self.cluster.world.process(name) is not None and self.watch.now < until_s:
            await asyncio.sleep(0.000_2)
            if is_aimed and is_being_closed(node):
                return

    def _crash_unless_it_serves(self, name: str, kind: Crash) -> bool:
        if self.cluster.world.process(name) is None or self.cluster.bookies[name].bookie is not None:
            return False
        self.cluster.crash(name, kind, restart_s=_RESTART_S)
        return True

    async def _client(self, random: Random) -> None:
        names = self.cluster.running_clients()
        if names:
            self.watch.struck("client killed")
            self.cluster.crash(random.choice(names), Crash.KILL)

    async def _pause(self, random: Random) -> None:
        names = [*self.cluster.bookies, *self.cluster.clients]
        name = random.choice(names)
        longest = 2 * self.options.session_timeout_ms / 1000
        pause_s = random.choice((0.02, 0.1, 0.3, longest)) * random.random()
        if self.cluster.pause(name, pause_s):
            self.watch.struck("pause")

    def targets(self) -> list[Target]:
        """Returns the servers that a hostile client attacks."""
        weapons = bookie_weapons(lambda: list(self.watch.ledgers))
        return [Target(name, PORT, weapons) for name in self.cluster.running_bookies()]

    async def _attack(self, random: Random) -> None:
        assert self.hostile is not None
        for _ in range(random.choice((1, 2, 6))):
            await self.hostile.attack(random)

    async def end_hostile(self) -> None:
        """When honest clients have done all that they wanted."""
        if self.hostile is not None:
            await self.hostile.aclose()

    async def _starve(self, random: Random) -> None:
        """It stands still in slices: whatever it does takes longer, and its timers are late."""
        name = random.choice([*self.cluster.bookies, *self.cluster.clients])
        slice_s, slices = random.choice((0.001, 0.005, 0.02)), random.randrange(5, 50)
        for count in range(slices):
            if self.cluster.pause(name, slice_s) and not count:
                self.watch.struck("slow CPU")
            await asyncio.sleep(slice_s * random.uniform(1.0, 1.5))

    # --- network ------------------------------------------------------------------------------------------------------

    async def _part(self, random: Random) -> None:
        network = self.cluster.world.network
        names = [*self.cluster.bookies, *self.cluster.clients]
        one, other = random.sample(names, 2)
        kind = random.choice(("one way", "both ways", "alone", "split"))
        self.watch.struck(f"partition: {kind}")
        if kind == "one way":
            network.block(one, other)
        elif kind == "both ways":
            network.block_both(one, other)
        elif kind == "alone":
            network.isolate(one)
            if random.random() < 0.5:
                self.cluster.cut_metadata(one)
        else:
            network.split_at_random(names)
        self._later(random.choice((0.05, 0.2, 0.8)) * random.random(), self._heal)

    def _heal(self) -> None:
        self.cluster.world.network.heal()
        self.cluster.mend_metadata()

    async def _reset(self, random: Random) -> None:
        self.watch.faults["reset"] += self.cluster.world.network.reset_at_random(random.choice((0.1, 0.5)))

    async def _slow(self, random: Random) -> None:
        network = self.cluster.world.network
        one, other = random.sample([*self.cluster.bookies, *self.cluster.clients], 2)
        link = network.link(one, other)
        link.delay = LinkDelay(0.001, random.choice((0.01, 0.1)), tail=0.2, tail_max_s=0.4)
        self.watch.struck("slow link")

        def mend() -> None:
            link.delay = None

        self._later(random.random(), mend)

    # --- disks --------------------------------------------------------------------------------------------------------

    async def _full(self, random: Random) -> None:
        node = self.cluster.bookies[random.choice(list(self.cluster.bookies))]
        device = random.choice(node.watch.image.devices)
        device.leave_room(random.choice((0, 100, 2_000)))

        def free() -> None:
            device.capacity_bytes = None

        self._later(0.5 * random.random(), free)

    async def _rot(self, random: Random) -> None:
        """On order: a bit of what is durable, in a journal or a log of a victim."""
        if not self.victims:
            return
        node = self.cluster.bookies[random.choice(self.victims)]
        device = random.choice(node.watch.image.devices)
        images = [
            image for image in device.tree.files() if image.durable and image.path.startswith(("journal", "logs"))
        ]
        if images:
            image = random.choice(images)
            end = len(image.durable)
            if image.path.startswith("journal") and self._one_denial_counts:
                end = _before_last_group(image.durable)
            device.flip_bit(image.path, random.randrange(end), random.randrange(8))
            node.watch.image.forget()

    @property
    def _one_denial_counts(self) -> bool:
        """Whether the victims are enough to deny an entry that they have lost without a trace, such as the last group
        of a journal (docs/journal.md)."""
        return self.options.victims > self.options.write - self.options.ack

    async def _ruin(self, random: Random) -> None:
        """Beyond the promise: the entry logs of any bookie, so that all copies of an entry may be damaged."""
        node = self.cluster.bookies[random.choice(list(self.cluster.bookies))]
        device = random.choice(node.watch.image.directories)
        for image in [image for image in device.tree.files() if image.durable and image.path.startswith("logs")]:
            offset = random.randrange(len(image.durable))
            self.watch.struck("log damaged")
            node.watch.ruined += 1
            if random.random() < 0.5:
                device.flip_bit(image.path, offset, random.randrange(8))
            else:
                device.break_sector(image.path, offset)
        node.watch.image.forget()

    async def _loss(self, random: Random) -> None:
        if not self.victims:
            return
        name = random.choice(self.victims)
        node = self.cluster.bookies[name]
        directories = [*node.config.bookie.journal_dirs.split(","), *node.config.bookie.ledger_dirs.split(",")]
        lost = random.choice((directories, [random.choice(directories)]))
        if node.watch.emptied or not node.watch.machine.processes:
            return
        self.cluster.crash(name, Crash.POWER_LOSS)
        node.watch.emptied = True
        if random.random() < 0.1:
            await self._delete_cookie(node)
            return
        for path in lost:
            node.watch.machine.empty(path)
        node.watch.image.forget()

    async def _delete_cookie(self, node: BookieNode) -> None:
        """As an operator who has declared the bookie gone."""
        self.watch.struck("cookie deleted")
        node.watch.is_given_up = True
        with contextlib.suppress(MetadataError):
            await self.cluster.store.delete(self.cluster.metadata.paths.cookie(BookieId(node.watch.bookie_id)))

    # --- metadata and clocks ------------------------------------------------------------------------------------------

    async def _meta(self, random: Random) -> None:
        metadata = self.cluster.metadata
        name = random.choice([*self.cluster.bookies, *self.cluster.clients])
        kind = random.choice(("loss", "loss", "slow", "cut", "expire"))
        self.watch.struck(f"metadata: {kind}")
        if kind == "loss":
            metadata.loss_rate = random.choice((0.02, 0.1))
            self._later(random.random(), self._mend_metadata)
        elif kind == "slow":
            metadata.slow_s = random.choice((0.02, 0.1))
            self._later(0.4 * random.random(), self._mend_metadata)
        elif kind == "cut":
            self.cluster.cut_metadata(name)
            self._later(1.5 * random.random() * self.options.session_timeout_ms / 1000, self.cluster.mend_metadata)
        else:
            for store in metadata.stores_of(self.cluster.world.process(name)):
                await metadata.expire(store)

    def _mend_metadata(self) -> None:
        self.cluster.metadata.loss_rate = self.cluster.metadata.slow_s = 0.0

    async def _clock(self, random: Random) -> None:
        name = random.choice([*self.cluster.bookies, *self.cluster.clients])
        self.watch.struck("clock jump")
        self.cluster.world.machine(name).clock.jump(random.uniform(-60_000, 60_000))

    # --- the operator -------------------------------------------------------------------------------------------------

    def _operate(self, node: BookieNode, error: BaseException) -> None:
        """A victim that refuses is repaired, or given up. Others refuse for a reason that passes."""
        self.watch.counters["starts refused"] += 1
        if node.name not in self.victims or not node.watch.is_excused:
            return
        refusals = self._refusals[node.name] = self._refusals.get(node.name, 0) + 1
        if not isinstance(error, DAMAGE) and refusals < _REFUSALS_MAX:
            return
        random = self._operator_random
        self._repairs[node.name] = self._repairs.get(node.name, 0) + 1
        is_repaired = isinstance(error, DAMAGE) and self.options.repairs
        if is_repaired and self._repairs[node.name] <= _REPAIRS_MAX and random.random() < 0.9:
            self.cluster.repair_bookie(node.name)
        else:
            self.watch.note(f"{node.name} is given up: {type(error).__name__}")
            self.cluster.down[node.name] = None

    # --- the end ------------------------------------------------------------------------------------------------------

    def _later(self, delay_s: float, work: Callable[[], None]) -> None:
        loop = self.cluster.world.loop
        loop.call_later(delay_s, work, context=loop.root.context)

    def stop(self) -> None:
        """Heals all there is to heal."""
        cluster = self.cluster
        for node in cluster.bookies.values():
            for device in node.watch.image.devices:
                for fault, count in device.faults.counts.items():
                    if count:
                        self.watch.faults[f"disk: {fault.value}"] += count
                device.faults.rates.clear()
                device.capacity_bytes = None
        cluster.resume_all()
        for link in cluster.world.network._links.values():
            link.delay = None
        self._mend_metadata()
        self._heal()
        if not self.options.heal_all:
            self._send_victims_away()

    def _send_victims_away(self) -> None:
        """For good, if enough others are left."""
        if len(self.cluster.bookies) - len(self.victims) < self.options.ensemble:
            return
        for name in self.victims:
            if name not in self.cluster.down:
                self.cluster.down[name] = None
                if self.cluster.world.process(name) is not None:
                    self.cluster.crash(name, Crash.POWER_LOSS)


def is_being_closed(node: BookieNode) -> bool:
    """A journal of it has a closing group that is not durable yet."""
    return any(
        isinstance(change, Write) and len(change.data) == GROUP_HEADER_BYTES
        for device in node.watch.image.journals
        for image in device.tree.files()
        for change in image.pending
    )


def _before_last_group(journal: bytearray) -> int:
    """Returns the end of what can be damaged in a file of a journal so that a start notices it: another group comes
    after it."""
    at, last = FILE_HEADER_BYTES, FILE_HEADER_BYTES
    while (header := decode_group_header(journal[at:])) and is_intact(header, journal[at : at + header.size]):
        at, last = at + header.size, at
    return last
