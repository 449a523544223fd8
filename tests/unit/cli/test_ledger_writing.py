"""What `magnetar ledger write` does when its ledger is taken from it."""

from __future__ import annotations

import asyncio
import gc
from collections.abc import AsyncIterator

import pytest

from magnetar.cli.ledger.write import _write
from magnetar.errors import LedgerFencedError
from tests.unit.ledger.writing import bodies, writer_world

IN_FLIGHT = 50


async def test_ledger_that_was_taken_over_is_one_error_whatever_is_in_flight() -> None:
    told: list[str] = []
    asyncio.get_running_loop().set_exception_handler(lambda _loop, context: told.append(context["message"]))
    await _lose_the_ledger()
    gc.collect()  # A future whose error was not fetched reports it when it is collected.
    assert told == []


async def _lose_the_ledger() -> None:
    async with writer_world(3) as world:
        writer = await world.client.create(ack_quorum=2)

        async def lines() -> AsyncIterator[bytes]:
            yield b"first"
            await world.client.recover(writer.ledger_id)
            for body in bodies(1, IN_FLIGHT):
                yield body

        with pytest.raises(LedgerFencedError):
            await _write(writer, lines(), None, IN_FLIGHT, keep_open=False)
