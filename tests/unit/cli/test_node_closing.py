"""How a process that serves topics ends when its bookie has failed."""

from __future__ import annotations

import asyncio
import contextlib
from typing import cast

import pytest

from magnetar.bookie.bookie import Bookie
from magnetar.cli.serve import _close_broker, close_hurriedly
from magnetar.errors import MagnetarError
from magnetar.runtime.metrics import Health

STEP_S = 0.01


class BookieThat:
    def __init__(self, *, is_healthy: bool) -> None:
        self._health = Health(is_healthy, {})

    def health(self) -> Health:
        return self._health


class Parts:
    """Closed one after the other, the last one first; some never end by themselves."""

    def __init__(self, *names: str) -> None:
        self.closed: list[str] = []
        self.interrupted: list[str] = []
        self._stack = contextlib.AsyncExitStack()
        for name in names:
            self._stack.push_async_callback(self._close, name)

    async def _close(self, name: str) -> None:
        if name.startswith("stuck"):
            try:
                await asyncio.get_running_loop().create_future()
            except asyncio.CancelledError:
                self.interrupted.append(name)
                raise
        await asyncio.sleep(0)
        self.closed.append(name)

    async def aclose(self) -> None:
        await self._stack.aclose()


async def test_parts_that_wait_for_a_failed_bookie_are_interrupted_and_all_others_are_closed() -> None:
    parts = Parts("resources", "front end", "stuck topics", "stuck policies", "upkeep")
    async with asyncio.timeout(10):
        await close_hurriedly(parts.aclose, STEP_S)
    assert parts.interrupted == ["stuck policies", "stuck topics"]
    assert parts.closed == ["upkeep", "front end", "resources"]


async def test_nothing_is_interrupted_when_a_hurried_broker_closes_in_time() -> None:
    parts = Parts("resources", "topics")
    await close_hurriedly(parts.aclose)
    assert (parts.closed, parts.interrupted) == (["topics", "resources"], [])


async def test_an_error_of_a_hurried_close_does_not_hide_why_the_process_ends(caplog: pytest.LogCaptureFixture) -> None:
    async def fails() -> None:
        raise MagnetarError("the store is away")

    await close_hurriedly(fails)
    assert "the broker was not closed cleanly" in caplog.messages


@pytest.mark.parametrize("bookie", [None, BookieThat(is_healthy=True)])
async def test_a_broker_whose_bookie_is_well_is_closed_with_patience(
    bookie: BookieThat | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("magnetar.cli.serve.close_hurriedly", None)
    parts = Parts("resources", "topics")
    await _close_broker(parts.aclose, cast("Bookie | None", bookie))
    assert parts.closed == ["topics", "resources"]


async def test_a_broker_whose_bookie_has_failed_is_closed_hurriedly(monkeypatch: pytest.MonkeyPatch) -> None:
    parts = Parts("front end", "stuck topics")

    async def at_once(close: object) -> None:
        assert close == parts.aclose
        await close_hurriedly(parts.aclose, STEP_S)

    monkeypatch.setattr("magnetar.cli.serve.close_hurriedly", at_once)
    await _close_broker(parts.aclose, cast("Bookie", BookieThat(is_healthy=False)))
    assert parts.interrupted == ["stuck topics"]
