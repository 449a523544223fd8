"""A gate that is shut for too long refuses; one that is closed keeps no caller waiting."""

from __future__ import annotations

import asyncio

from magnetar.bookie.admission import Gate
from magnetar.testing.waiting import until


async def test_a_closed_gate_has_no_timer_left() -> None:
    gate = Gate("test", patience_s=0.01)
    gate.shut()
    gate.close()
    await asyncio.get_running_loop().run_in_executor(None, lambda: None)
    assert gate._impatient is None
    assert not gate.refuses


async def test_a_gate_that_stays_shut_refuses_until_it_opens() -> None:
    gate = Gate("test", patience_s=0.0)
    gate.shut()
    await until(lambda: gate.refuses, "the gate has lost its patience")
    gate.open()
    assert not gate.refuses
    assert not gate.is_shut
