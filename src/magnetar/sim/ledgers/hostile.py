"""Hostile clients: a node of the world that connects to servers, and breaks every rule it can.

Purpose:   whatever a client sends, and whatever it does not read, all promises to the others hold: the invariants of
           safety, of liveness, and of memory (M1) are checked in the same world, of the honest clients.

- sends: garbage, lengths that no frame may have, frames that never end, requests with nonsense in them, floods of reads
  and adds. Then it is silent, or sends byte by byte, or breaks the connection in the middle.
- reads: nothing, in half of the cases.
- end: when the world heals, what it has begun stays as it is, and honest clients must end well beside it. A server that
  it is still connected to must have closed every connection with an unfinished frame by then.

Limits:    it does not know the keys of ledgers, and so writes only to ledgers of its own. A bookie does not ask its
           clients who they are: one that knows a key may do what the owner may.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Iterable
from random import Random
from typing import Final, NamedTuple, cast

from magnetar.sim.ledgers.watch import Watch
from magnetar.sim.machine import SimRuntime
from magnetar.sim.process import Process
from magnetar.sim.world import World
from magnetar.wire.bookkeeper.frames import FRAME_BYTES_MAX, VERSION_MAX, WORD, Operation, PacketHeader
from magnetar.wire.bookkeeper.hot_path import encode_reads

NAME: Final = "hostile"
FIRST_LEDGER: Final = 2**40
"""Ledgers from here on are its own."""
_CONNECTIONS_MAX: Final = 12
_DRIPS_MAX: Final = 10
_DRIP_S: Final = 0.02
_LOOKS_MAX: Final = 100
_CLOSED_WITHIN_S: Final = 30.0  # Beyond every time-out of an unfinished frame in these worlds.


class Weapon(NamedTuple):
    name: str
    make: Callable[[Random], bytes]
    is_unfinished: bool = False
    """What is sent ends in the middle of a frame."""


class Target(NamedTuple):
    node: str
    port: int
    weapons: tuple[Weapon, ...]


class Hostile:
    """Made when the servers run; `attack` is one deed; ended by `aclose`."""

    def __init__(self, world: World, watch: Watch, targets: Callable[[], Iterable[Target]]) -> None:
        self._world = world
        self._watch = watch
        self._targets = targets
        self._stopping = asyncio.Event()
        self._tasks: dict[asyncio.Task[None], None] = {}
        self._attackers: list[_Attacker] = []
        world.add_node(NAME)
        self._process = world.start(NAME, self._main)

    async def _main(self, runtime: SimRuntime) -> None:
        del runtime
        await self._stopping.wait()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def attack(self, random: Random) -> None:
        """Returns at once; the deed is done by the hostile node."""
        targets = list(self._targets())
        if not targets:
            return
        target = random.choice(targets)
        weapon = random.choice(target.weapons)
        self._watch.struck(f"hostile: {weapon.name}")
        for _ in range(random.choice((1, 1, 1, 3))):
            attacker = _Attacker(target, weapon, weapon.make(random), self._world.process(target.node), random)
            self._attackers.append(attacker)
            self._spawn(attacker)
        while len(self._attackers) > _CONNECTIONS_MAX:
            self._attackers.pop(0).abort()

    def _spawn(self, attacker: _Attacker) -> None:
        self._watch.counters["hostile connections"] += 1
        loop = self._world.loop
        task = loop.create_task(attacker.run(), name="attack", context=self._process.context.copy())
        self._tasks[task] = None
        task.add_done_callback(lambda done: self._tasks.pop(done))

    async def aclose(self) -> None:
        """Looks whether servers have closed what they had to, then ends."""
        for _ in range(_LOOKS_MAX):
            if not self._not_closed():
                break
            await asyncio.sleep(_CLOSED_WITHIN_S / _LOOKS_MAX)
        for attacker in self._not_closed():
            self._watch.violated(
                "M1",
                f"{attacker.target.node} keeps a connection whose frame has not continued for {_CLOSED_WITHIN_S:g} s",
            )
        self._stopping.set()
        await self._world.wait_exit(NAME)

    def _not_closed(self) -> list[_Attacker]:
        return [
            attacker
            for attacker in self._attackers
            if attacker.is_stuck and self._world.process(attacker.target.node) is attacker.server
        ]


class _Attacker(asyncio.Protocol):
    """One connection, and what is done with it."""

    def __init__(self, target: Target, weapon: Weapon, data: bytes, server: Process | None, random: Random) -> None:
        self.target = target
        self.server = server
        """The process that it attacks; the next one there knows nothing of the connection."""
        self._is_unfinished = weapon.is_unfinished
        self._data = data
        self._reads = random.random() < 0.5 or weapon.is_unfinished
        self._drips = random.randint(1, _DRIPS_MAX) if random.random() < 0.3 else 0
        self._breaks = random.random() < 0.2
        self._transport: asyncio.Transport | None = None
        self._is_aborted = False

    @property
    def is_stuck(self) -> bool:
        return self._is_unfinished and not self._breaks and self._transport is not None

    async def run(self) -> None:
        try:
            await asyncio.get_running_loop().create_connection(lambda: self, self.target.node, self.target.port)
        except OSError:
            return
        cut = len(self._data) - self._drips
        self._write(self._data[:cut])
        for at in range(max(0, cut), len(self._data)):
            await asyncio.sleep(_DRIP_S)
            self._write(self._data[at : at + 1])
        if self._breaks:
            self.abort()

    def _write(self, data: bytes) -> None:
        if self._transport is not None:
            self._transport.write(data)

    def abort(self) -> None:
        self._is_aborted = True
        if self._transport is not None:
            self._transport.abort()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)
        if not self._reads:
            self._transport.pause_reading()
        if self._is_aborted:
            self._transport.abort()

    def connection_lost(self, exc: Exception | None) -> None:
        del exc
        self._transport = None


# --- what it sends to bookies -----------------------------------------------------------------------------------------


def bookie_weapons(ledgers: Callable[[], list[int]]) -> tuple[Weapon, ...]:
    """`ledgers` are those of honest clients, which it reads."""

    def reads(random: Random) -> bytes:
        known = ledgers() or [FIRST_LEDGER]
        return b"".join(
            encode_reads(random.choice(known), [random.randrange(60) for _ in range(random.choice((1, 10, 40)))])
            for _ in range(random.choice((1, 5, 10)))
        )

    return (
        Weapon("garbage", garbage),
        Weapon("an impossible length", impossible_length),
        Weapon("a frame that never ends", _unfinished_add, is_unfinished=True),
        Weapon("a flood of reads", reads),
        Weapon("reads, and half of one", lambda random: reads(random) + encode_reads(1, [1])[:9]),
        Weapon("a flood of adds", _adds),
        Weapon("requests with nonsense in them", _nonsense),
    )


def garbage(random: Random) -> bytes:
    return random.randbytes(random.choice((1, 5, 50, 500)))


def impossible_length(random: Random) -> bytes:
    return random.choice((0, 1, 3, FRAME_BYTES_MAX, 2**31, 2**32 - 1)).to_bytes(4, "big") + garbage(random)


def unfinished_frame(random: Random, head: bytes) -> bytes:
    """The begin of a frame that announces more than is sent, up to a megabyte."""
    sent = random.choice((0, 100, 10_000, 150_000, 400_000))
    return (len(head) + sent + random.choice((1, 1_000, 2**20))).to_bytes(4, "big") + head + bytes(sent)


def _unfinished_add(random: Random) -> bytes:
    return unfinished_frame(random, WORD.pack(PacketHeader(VERSION_MAX, Operation.ADD, 0).word()))


def _adds(random: Random) -> bytes:
    """To ledgers of its own, with all kinds of flags."""
    frames: list[bytes] = []
    ledger_id = FIRST_LEDGER + random.randrange(3)
    for entry_id in range(random.choice((1, 10, 40))):
        flags = random.getrandbits(16)
        head = WORD.pack(PacketHeader(VERSION_MAX, Operation.ADD, flags).word()) + bytes(20)
        entry = ledger_id.to_bytes(8, "big") + entry_id.to_bytes(8, "big") + bytes(random.choice((40, 200)))
        frames.append((len(head) + len(entry)).to_bytes(4, "big") + head + entry)
    return b"".join(frames)


def _nonsense(random: Random) -> bytes:
    """Whole frames of known operations, with anything in them."""
    frames: list[bytes] = []
    for _ in range(random.choice((1, 20))):
        operation = random.choice((Operation.READ, Operation.AUTH, Operation.BATCH_READ, 4, 9))
        word = WORD.pack(PacketHeader(random.choice((0, 1, 2, 2, 2)), operation, 0).word())
        ids = (FIRST_LEDGER + 7).to_bytes(8, "big") + random.randbytes(8)
        body = word + ids + random.randbytes(random.choice((0, 4, 40)))
        frames.append(len(body).to_bytes(4, "big") + body)
    return b"".join(frames)
