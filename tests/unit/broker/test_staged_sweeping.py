"""The broker's sweeper of staged ledgers, as a task that must not end."""

from __future__ import annotations

from random import Random
from types import SimpleNamespace
from typing import Any, cast

import pytest

from magnetar.broker.staged.publishing import StagedSweeping
from magnetar.errors import StoreClosedError
from magnetar.testing.waiting import until


@pytest.mark.parametrize("failure", [StoreClosedError("as expected now and then"), KeyError("nobody expected that")])
async def test_a_sweep_that_fails_is_logged_and_followed_by_the_next(
    failure: Exception, caplog: pytest.LogCaptureFixture
) -> None:
    service = SimpleNamespace(
        config=SimpleNamespace(upkeep=SimpleNamespace(staging_sweep_s=0)), entropy=SimpleNamespace(random=Random("0"))
    )
    nobody = cast("Any", None)
    sweeping = StagedSweeping(cast("Any", service), nobody, nobody, nobody)
    sweeps: list[None] = []

    async def sweep() -> None:
        sweeps.append(None)
        raise failure

    sweeping.sweep = sweep  # type: ignore[assignment, method-assign]
    sweeping.start()
    try:
        await until(lambda: len(sweeps) >= 3, "it has swept three times")
    finally:
        await sweeping.aclose()
    assert "a sweep of staged data failed" in caplog.text
