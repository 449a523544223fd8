"""The clients' work: writers, successors that take over, readers, and one who deletes.

- topic: what is fought about. The client that gets it recovers the last ledger, creates the next, and writes to that
  until it is fenced, fails, or closes it. The owner before does not know that it lost the topic: it continues.
- director: outside of all clients. It says who takes over when, who reads, what is deleted.

Limits:    every call has a bound in virtual time, far beyond all time-outs of the client: a call that is not over by
           then hangs (V2).
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from random import Random
from typing import Any, Final, TypeVar

from magnetar.errors import LedgerFencedError, MagnetarError, NoSuchLedgerError
from magnetar.ledger.reading.reader import LedgerReader
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.sim.ledgers.cluster import ClientNode, Cluster
from magnetar.sim.ledgers.watch import LedgerHistory, Watch
from magnetar.sim.seeds import seeded
from magnetar.wire.bookkeeper.digests import DigestType

T = TypeVar("T")

CALL_LIMIT_S: Final = 120.0
_DIGESTS: Final = (DigestType.CRC32C, DigestType.CRC32C, DigestType.CRC32, DigestType.HMAC)
_READS_MAX: Final = 20
_TAIL_S: Final = 0.5
_RETRIES_MAX: Final = 8


@dataclass(slots=True)
class Topic:
    name: str
    ledger_id: int | None = None
    """The last one."""
    generation: int = 0
    owner: str = ""
    old: list[int] = field(default_factory=list)


class Acks:
    """A writer's listener: what it hears goes to the watch, at that moment."""

    def __init__(self, watch: Watch) -> None:
        self.ledger: LedgerHistory
        self.pending = 0
        self.moved = asyncio.Event()
        self.failure: MagnetarError | None = None
        self._watch = watch

    def on_confirmed(self, first_entry_id: int, tokens: Sequence[Any]) -> None:
        watch, ledger = self._watch, self.ledger
        last = first_entry_id + len(tokens) - 1
        watch.look_at_disks()
        watch.tell("on_acked", ledger, first_entry_id, last, tokens)
        ledger.acked = max(ledger.acked, last)
        watch.counters["acks"] += len(tokens)
        self.pending -= len(tokens)
        self.moved.set()

    def on_failed(self, tokens: Sequence[Any], error: MagnetarError) -> None:
        self.failure = error
        self.pending -= len(tokens)
        self._watch.counters["unknown adds"] += len(tokens)
        if isinstance(error, LedgerFencedError):
            self._watch.counters["fenced writers"] += 1
        self._watch.note(f"the writer of ledger {self.ledger.ledger_id} failed: {type(error).__name__}")
        self.moved.set()

    def on_room(self) -> None:
        self.moved.set()

    def overhear(self, writer: LedgerWriter) -> None:
        """One without a listener: the watch hears at that moment, not when the callers of `add` get their turn."""
        confirm, fail = writer.on_confirmed, writer.on_failed

        def on_confirmed(first_entry_id: int, tokens: Sequence[Any]) -> None:
            self.on_confirmed(first_entry_id, range(first_entry_id, first_entry_id + len(tokens)))
            confirm(first_entry_id, tokens)

        def on_failed(tokens: Sequence[Any], error: MagnetarError) -> None:
            self.on_failed(tokens, error)
            fail(tokens, error)

        writer.on_confirmed, writer.on_failed = on_confirmed, on_failed  # type: ignore[method-assign]


class Workload:
    def __init__(self, cluster: Cluster, watch: Watch) -> None:
        self.cluster = cluster
        self.options = cluster.options
        self.watch = watch
        self.random: Random = seeded(f"{self.options.seed}/workload")
        self.topics = [Topic(f"topic-{number}") for number in range(self.options.topics)]
        self.is_over = False
        self._sent = 0

    def begin(self) -> None:
        """Nothing runs before the director says so."""

    def on_healed(self) -> None:
        """Writers end."""
        self.is_over = True

    # --- the director -------------------------------------------------------------------------------------------------

    async def direct(self, until_s: float) -> None:
        loop = self.cluster.world.loop
        for topic in self.topics:
            self.take_over(topic)
        gap_s = self.options.takeover_gap_s / len(self.topics)
        while loop.now < until_s:
            await asyncio.sleep(min(self.random.expovariate(1 / gap_s), 0.5))
            self._act()
        self.is_over = True

    def _act(self) -> None:
        topic = self.random.choice(self.topics)
        dice = self.random.random()
        if dice < 0.55:
            self.take_over(topic)
        elif dice < 0.85:
            self._read(topic)
        elif self.options.deletes:
            self._delete(topic)

    def take_over(self, topic: Topic, *, by: str | None = None) -> ClientNode | None:
        """Gives the topic to a client other than the owner. Returns None if there is no such client."""
        running = self.cluster.ledger_clients()
        able = [node for node in running if node.name == by or (by is None and node.name != topic.owner)] or running
        if not able:
            return None
        node = self.random.choice(able)
        topic.generation += 1
        topic.owner = node.name
        name = f"{node.name} owns {topic.name} #{topic.generation}"
        self.watch.note(f"{name}, ledger {topic.ledger_id}")
        self.cluster.spawn(node, self.own(node, topic, topic.generation), name)
        return node

    def _read(self, topic: Topic) -> None:
        running = self.cluster.ledger_clients()
        if running and topic.ledger_id is not None:
            node = self.random.choice(running)
            ledger_id = self.random.choice([topic.ledger_id, *topic.old])
            self.cluster.spawn(node, self._follow(node, ledger_id), f"{node.name} reads ledger {ledger_id}")

    def _delete(self, topic: Topic) -> None:
        running = self.cluster.ledger_clients()
        if running and topic.old:
            node = self.random.choice(running)
            ledger_id = topic.old.pop(0)
            self.cluster.spawn(node, self.remove(node, ledger_id), f"{node.name} deletes ledger {ledger_id}")

    # --- owning a topic -----------------------------------------------------------------------------------------------

    async def own(self, node: ClientNode, topic: Topic, generation: int) -> None:
        def is_mine() -> bool:
            return topic.generation == generation and not self.is_over and node.client is not None

        before = topic.ledger_id
        if before is not None and not await self.recover(node, before, is_mine):
            return
        for _ in range(_RETRIES_MAX):
            if not is_mine():
                return
            found = await self.create(node)
            if found is not None:
                break
            await asyncio.sleep(0.02 + 0.1 * self.random.random())
        else:
            return
        writer, acks = found
        if topic.ledger_id is not None:
            topic.old.append(topic.ledger_id)
        topic.ledger_id = writer.ledger_id
        await self._write(node, writer, acks)

    async def recover(self, node: ClientNode, ledger_id: int, is_mine: Any) -> bool:
        known = self.watch.history.ledgers.get(ledger_id)
        password = known.password if known is not None else b""
        for _ in range(_RETRIES_MAX):
            client = node.client
            if not is_mine() or client is None:
                return False
            try:
                await self.bounded(client.recover(ledger_id, password=password), f"recovery of ledger {ledger_id}")
            except NoSuchLedgerError:
                return True
            except MagnetarError as error:
                self.watch.counters["recoveries undecided"] += 1
                self.watch.note(f"{node.name} did not recover ledger {ledger_id}: {error}")
                await asyncio.sleep(0.01 + 0.1 * self.random.random())
            else:
                self.watch.counters["recoveries"] += 1
                return True
        return False

    async def create(self, node: ClientNode) -> tuple[LedgerWriter, Acks] | None:
        client = node.client
        if client is None:
            return None
        options, random = self.options, self.random
        acks = Acks(self.watch)
        digest, password = random.choice(_DIGESTS), random.choice((b"", b"secret"))
        try:
            writer = await self.bounded(
                client.create(
                    ensemble_size=options.ensemble,
                    write_quorum=options.write,
                    ack_quorum=options.ack,
                    digest_type=digest,
                    password=password,
                    listener=None if options.in_line else acks,
                ),
                "create",
            )
        except MagnetarError as error:
            self.watch.note(f"{node.name} did not create a ledger: {error}")
            return None
        acks.ledger = self.watch.history.created(writer.ledger_id, password, digest, node.name)
        self.watch.counters["ledgers"] += 1
        if options.in_line:
            acks.overhear(writer)
        return writer, acks

    async def _write(self, node: ClientNode, writer: LedgerWriter, acks: Acks) -> None:
        random = self.random
        while acks.failure is None and not self.is_over:
            await self.burst(writer, acks, random.randint(1, self.options.burst_max))
            if random.random() < 0.3:
                await self.wait_quiet(acks)
            await asyncio.sleep(random.random() * self.options.think_s)
            if random.random() < 0.01:
                break
        if random.random() < 0.6:
            await self.close(node, writer, acks)
        else:
            await self.bounded(writer.release(), f"release of ledger {writer.ledger_id}")

    async def burst(self, writer: LedgerWriter, acks: Acks, count: int) -> None:
        await (self._call_adds if self.options.in_line else self._submit_adds)(writer, acks, count)

    async def _submit_adds(self, writer: LedgerWriter, acks: Acks, count: int) -> None:
        """One after the other, each when there is room: no add may be refused forever."""
        for _ in range(count):
            if not writer.has_room:
                await self._wait_room(writer, acks)
            if not self.add(writer, acks):
                return

    def add(self, writer: LedgerWriter, acks: Acks) -> bool:
        payload = self._payload(writer)
        try:
            entry_id = writer.submit(payload, len(acks.ledger.payloads))
        except MagnetarError:
            return False
        self.watch.history.sent(acks.ledger, entry_id, payload)
        acks.pending += 1
        return True

    async def _call_adds(self, writer: LedgerWriter, acks: Acks, count: int) -> None:
        """All at once: they wait in line, and have the numbers in which they came, whether they are sent or not."""
        calls: list[asyncio.Future[int]] = []
        first = len(acks.ledger.payloads)
        for entry_id in range(first, first + count):
            payload = self._payload(writer)
            try:
                calls.append(writer.enqueue(payload))
            except MagnetarError:
                break
            self.watch.history.sent(acks.ledger, entry_id, payload)
            acks.pending += 1
        answers = await self.bounded(
            asyncio.gather(*calls, return_exceptions=True), f"the adds in line of ledger {writer.ledger_id}"
        )
        for entry_id, answer in enumerate(answers, first):
            if answer != entry_id and not isinstance(answer, MagnetarError):
                self.watch.violated("L6", f"add {entry_id} of ledger {writer.ledger_id} was answered with {answer!r}")

    def _payload(self, writer: LedgerWriter) -> bytes:
        self._sent += 1
        size = self.random.randint(0, self.options.payload_max)
        return f"{writer.ledger_id}/{self._sent}/".encode() + b"x" * size

    async def _wait_room(self, writer: LedgerWriter, acks: Acks) -> None:
        async def room() -> None:
            while not writer.has_room and acks.failure is None:
                acks.moved.clear()
                await acks.moved.wait()

        self.watch.counters["waits for room"] += 1
        await self.bounded(room(), f"the wait for room in ledger {writer.ledger_id}")

    async def wait_quiet(self, acks: Acks) -> None:
        async def quiet() -> None:
            while acks.pending and acks.failure is None:
                acks.moved.clear()
                await acks.moved.wait()

        await self.bounded(quiet(), f"the adds of ledger {acks.ledger.ledger_id}")

    async def close(self, node: ClientNode, writer: LedgerWriter, acks: Acks) -> None:
        acks.ledger.closing = True
        try:
            await self.bounded(writer.close(), f"close of ledger {writer.ledger_id}")
        except LedgerFencedError:
            self.watch.counters["fenced closes"] += 1
        except MagnetarError as error:
            self.watch.note(f"{node.name} did not close ledger {writer.ledger_id}: {error}")
            await self.bounded(writer.release(), f"release of ledger {writer.ledger_id}")

    async def bounded(self, call: Awaitable[T], what: str) -> T:
        """V2: every request ends in time."""
        try:
            async with asyncio.timeout(CALL_LIMIT_S) as limit:
                return await call
        except TimeoutError:
            if limit.expired():
                self.watch.violated("V2", f"{what} has not ended within {CALL_LIMIT_S:g} s")
                raise MagnetarError("hung") from None
            raise

    # --- reading ------------------------------------------------------------------------------------------------------

    async def _follow(self, node: ClientNode, ledger_id: int) -> None:
        ledger = self.watch.history.ledgers.get(ledger_id)
        client = node.client
        if ledger is None or client is None:
            return
        try:
            reader = await self.bounded(
                client.open_no_recovery(ledger_id, password=ledger.password), f"open of ledger {ledger_id}"
            )
            if self.random.random() < 0.5:
                await self._tail(node, reader, ledger)
            else:
                await self._read_some(node, reader, ledger)
        except MagnetarError as error:
            self.watch.note(f"{node.name} stops reading ledger {ledger_id}: {error}")

    async def _read_some(self, node: ClientNode, reader: LedgerReader, ledger: LedgerHistory) -> None:
        seen = -1
        for _ in range(self.random.randint(1, 4)):
            lac = int(await self.bounded(reader.refresh_lac(), f"the LAC of ledger {ledger.ledger_id}"))
            self.watch.tell("on_lac_seen", ledger, node.name, seen, lac)
            seen = lac
            if lac >= 0:
                first = self.random.randint(max(0, lac - _READS_MAX), lac)
                entries = await self.bounded(reader.read(first, lac), f"a read of ledger {ledger.ledger_id}")
                for entry in entries:
                    self._read_entry(node, ledger, entry.entry_id, bytes(entry.payload), lac)
            await asyncio.sleep(self.random.random() * 0.1)

    async def _tail(self, node: ClientNode, reader: LedgerReader, ledger: LedgerHistory) -> None:
        seen = -1
        try:
            async with asyncio.timeout(_TAIL_S), aclosing(reader.tail(max(0, int(reader.last_confirmed) - 3))) as tail:
                async for entry in tail:
                    lac = int(reader.last_confirmed)
                    self.watch.tell("on_lac_seen", ledger, node.name, seen, lac)
                    seen = lac
                    self._read_entry(node, ledger, entry.entry_id, bytes(entry.payload), lac)
        except TimeoutError:
            return

    def _read_entry(self, node: ClientNode, ledger: LedgerHistory, entry_id: int, payload: bytes, lac: int) -> None:
        self.watch.counters["entries read"] += 1
        self.watch.tell("on_read", ledger, node.name, entry_id, payload, lac)

    # --- deleting -----------------------------------------------------------------------------------------------------

    async def remove(self, node: ClientNode, ledger_id: int) -> None:
        ledger, client = self.watch.history.ledgers.get(ledger_id), node.client
        if client is None:
            return
        if ledger is not None:
            ledger.deleting = True
        try:
            await self.bounded(client.delete(ledger_id), f"deletion of ledger {ledger_id}")
            self.watch.counters["ledgers deleted"] += 1
        except MagnetarError as error:
            self.watch.note(f"{node.name} did not delete ledger {ledger_id}: {error}")
