"""Random storms over one topic: whatever happens, what was acknowledged exists once, in order, with its index."""

from __future__ import annotations

import asyncio
import contextlib
from random import Random

import pytest

from magnetar.config.topic import TopicConfig
from magnetar.errors import AddTimeoutError, LogBusyError, TopicFencedError
from magnetar.topic.log.log import TopicLog
from magnetar.topic.position import Position
from tests.unit.topic.log_world import Heard, LogWorld, drop_tail, log_world, message, read_all, text_of

pytestmark = pytest.mark.virtual_time

STEPS = 60
CONFIG = TopicConfig(
    ensemble_size=2, write_quorum=2, ack_quorum=2, ledger_minutes_min=0, ledger_entries_max=40, ledger_wait_ms=2_000
)


class Storm:
    """One owner at a time knows that it is the owner; those before it may not know yet that they are not."""

    def __init__(self, world: LogWorld, random: Random) -> None:
        self.world, self.random = world, random
        self.owners: list[tuple[TopicLog, Heard]] = []
        self.sent = 0
        self.work: list[asyncio.Future[object]] = []

    async def step(self) -> None:
        log, _ = self.owners[-1]
        match self.random.choices(["append", "turn", "old", "break", "roll", "open"], [40, 30, 12, 6, 6, 6])[0]:
            case "append":
                self.append(log, self.random.randrange(1, 30))
            case "turn":
                for _ in range(self.random.randrange(20)):
                    await asyncio.sleep(0)
            case "old":
                self.append(self.random.choice(self.owners)[0], 2)
            case "break" if (ledger := log._roller.ledger) is not None:
                ledger._engine.fail(AddTimeoutError("planted"))
            case "roll":
                self.work.append(asyncio.ensure_future(log.roll()))
            case "open":
                await self.open()

    def append(self, log: TopicLog, count: int) -> None:
        with contextlib.suppress(TopicFencedError, LogBusyError):
            for _ in range(count):
                log.append(message(f"m{self.sent}"), 1, self.sent)
                self.sent += 1

    async def open(self) -> None:
        opened = None
        while opened is None:  # One of ours may be in the way with a change of its own.
            with contextlib.suppress(TopicFencedError):
                opened = await self.world.open()
        self.owners.append(opened)

    async def settle(self) -> TopicLog:
        """Waits until every caller has its outcome."""
        await asyncio.gather(*self.work, return_exceptions=True)
        await self.open()
        for log, _ in self.owners[:-1]:
            await log.aclose()
        return self.owners[-1][0]

    def acknowledged(self) -> dict[int, Position]:
        acknowledged: dict[int, Position] = {}
        for _, heard in self.owners:
            for position, token in heard.appended:
                assert token not in acknowledged
                acknowledged[token] = position
        return acknowledged


@pytest.mark.parametrize("seed", range(6))
async def test_what_was_acknowledged_survives_a_storm(seed: int) -> None:
    async with log_world(bookies=3, config=CONFIG) as world:
        storm = Storm(world, Random(seed))
        await storm.open()
        for _ in range(STEPS):
            await storm.step()
        log = await storm.settle()
        drop_tail(log)
        entries = await read_all(log, entries_max=50)
        assert [entry.head.index for entry in entries] == list(range(len(entries)))
        found = {int(text_of(entry)[1:]): entry.position for entry in entries}
        assert len(found) == len(entries)  # Nothing exists twice.
        acknowledged = storm.acknowledged()
        assert {token: found.get(token) for token in acknowledged} == acknowledged
        for _, heard in storm.owners:
            assert heard.positions == sorted(heard.positions)
            assert heard.tokens == sorted(heard.tokens)
        told = [token for _, heard in storm.owners for token in heard.tokens + heard.failed]
        assert sorted(told) == list(range(storm.sent))
