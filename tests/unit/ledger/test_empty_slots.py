"""A bookie that went away while a writer was idle is connected again, and misses nothing."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from magnetar.errors import BookieUnavailableError, MagnetarError
from magnetar.ids import BookieId
from magnetar.ledger.channels.channel import Channel
from magnetar.ledger.writing.repair import Repair
from magnetar.ledger.writing.writer import LedgerWriter
from magnetar.testing.waiting import until
from tests.unit.ledger.writing import WriterWorld, ensembles, writer_world

pytestmark = pytest.mark.virtual_time


class Door:
    """Repairs connect to no bookie until it is opened; and to one bookie, if a test names it, never."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._open = asyncio.Event()
        self.refused = ""
        connect = Repair._channel

        async def later(repair: Repair, bookie_id: BookieId) -> Channel | MagnetarError:
            await self._open.wait()
            if bookie_id == self.refused:
                return BookieUnavailableError("refused")
            return await connect(repair, bookie_id)

        monkeypatch.setattr(Repair, "_channel", later)

    def open(self) -> None:
        self._open.set()


@asynccontextmanager
async def writer_with_an_empty_slot(
    world: WriterWorld, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[tuple[LedgerWriter, Door]]:
    async with await world.client.create(ack_quorum=2) as writer:
        await writer.add(b"before")
        await until(lambda: not writer._engine.unanswered, "everybody answered")
        await world.cluster.restart(ensembles(writer)[0][1][0])
        await until(lambda: writer._engine.slots[0].is_empty, "the writer noticed")
        yield writer, Door(monkeypatch)


async def test_what_others_confirmed_meanwhile_is_sent_to_it_too(monkeypatch: pytest.MonkeyPatch) -> None:
    async with writer_world(3) as world:
        async with writer_with_an_empty_slot(world, monkeypatch) as (writer, door):
            for number in range(5):
                await writer.add(b"by two %d" % number)
            door.open()
            for entry_id in range(1, 6):
                await until(lambda: _is_everywhere(world, writer, entry_id), f"entry {entry_id} is everywhere")  # noqa: B023
            assert (len(ensembles(writer)), writer.statistics().bookies_failed) == (1, 0)
        assert len(await world.payloads(writer)) == 6


async def _is_everywhere(world: WriterWorld, writer: LedgerWriter, entry_id: int) -> bool:
    return len(await world.holders(writer, entry_id)) == 3


async def test_the_writer_waits_for_it_before_it_owes_too_much(monkeypatch: pytest.MonkeyPatch) -> None:
    async with (
        writer_world(3, adds_behind_max=10) as world,
        writer_with_an_empty_slot(world, monkeypatch) as (writer, door),
    ):
        while writer.has_room:
            await writer.add(b"by two")
        owing = writer._engine.slots[0].backlog_entries
        assert 10 < owing <= 13  # The limit, and what was sent when it was reached.
        door.open()
        await writer.add(b"by all")
        await until(lambda: _is_everywhere(world, writer, owing + 1), "the last entry is everywhere")


async def test_it_is_replaced_if_it_stays_away_and_the_new_one_gets_what_is_not_confirmed(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async with writer_world(4) as world:
        async with writer_with_an_empty_slot(world, monkeypatch) as (writer, door):
            await writer.add(b"by two")
            door.refused = ensembles(writer)[0][1][0]
            door.open()
            await writer.add(b"by others")
            await until(lambda: len(ensembles(writer)) == 2, "it is replaced")
            assert door.refused not in ensembles(writer)[1][1]
            assert writer._engine.slots[0].backlog == []
        assert await world.payloads(writer) == [b"before", b"by two", b"by others"]
