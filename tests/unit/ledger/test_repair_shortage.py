"""A writer whose bookies can be reached, but take no entries, and that no other bookie can replace."""

from __future__ import annotations

import asyncio
import logging

import pytest

from magnetar.bookie.read_only import ReadOnlyReason
from magnetar.runtime.backoff import Backoff
from magnetar.testing.waiting import until
from tests.unit.ledger.writing import WriterWorld, bodies, writer_world

pytestmark = pytest.mark.virtual_time

TRIES = 8


@pytest.fixture
def pauses(monkeypatch: pytest.MonkeyPatch) -> list[float]:
    """What the writer would have waited; the test does not."""
    wanted: list[float] = []
    next_s = Backoff.next_s

    def noted(backoff: Backoff) -> float:
        wanted.append(next_s(backoff))
        return 0.0

    monkeypatch.setattr(Backoff, "next_s", noted)
    return wanted


def set_read_only(world: WriterWorld, is_read_only: bool, *numbers: int) -> None:
    for number in numbers:
        world.cluster.nodes[number].running.switch.set(ReadOnlyReason.OPERATOR, is_read_only)


def warnings_of(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno >= logging.WARNING and record.name.startswith("magnetar.ledger")
    ]


async def test_pauses_grow_and_few_warnings_are_logged_while_every_bookie_refuses(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async with (
        writer_world(1) as world,
        await world.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        await writer.add(b"entry-0")
        set_read_only(world, True, 0)
        add = asyncio.ensure_future(writer.add(b"entry-1"))
        await until(lambda: writer.statistics().bookies_failed > TRIES, "it was refused many times")
        set_read_only(world, False, 0)
        assert await add == 1
        assert pauses[TRIES - 1] >= 1.0
        assert pauses[0] < 0.1
        assert warnings_of(caplog) == ["a bookie of the ensemble failed", "failed bookies cannot be replaced yet"]


async def test_pauses_begin_anew_after_a_bookie_has_taken_entries_again(pauses: list[float]) -> None:
    async with (
        writer_world(1) as world,
        await world.client.create(ensemble_size=1, write_quorum=1, ack_quorum=1) as writer,
    ):
        for round_ in range(2):
            set_read_only(world, True, 0)
            before, enough = len(pauses), writer.statistics().bookies_failed + 5

            def is_refused_often(enough: int = enough) -> bool:
                return writer.statistics().bookies_failed >= enough

            add = asyncio.ensure_future(writer.add(b"entry"))
            await until(is_refused_often, "it was refused many times")
            set_read_only(world, False, 0)
            assert await add == round_
            assert pauses[before] < 0.1 < pauses[before + 3]


async def test_pauses_grow_while_one_bookie_refuses_that_the_others_do_not_need(
    pauses: list[float], caplog: pytest.LogCaptureFixture
) -> None:
    async with writer_world(3) as world, await world.client.create(ack_quorum=2) as writer:
        set_read_only(world, True, 0)

        async def is_refused_often() -> bool:
            for body in bodies(0, 3):
                await writer.add(body)
            return writer.statistics().bookies_failed > TRIES

        await until(is_refused_often, "it was refused many times")
        assert max(pauses[: TRIES + 1]) >= 1.0
        assert len(warnings_of(caplog)) <= 2
