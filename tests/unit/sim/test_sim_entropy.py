"""Seeded entropy against the contract, and clocks that are wrong on purpose."""

from __future__ import annotations

import asyncio

import pytest

from magnetar.sim.machine import WORLD_BEGINS_MS, SimEntropy, WallClock
from tests.contracts.entropy import EntropyContract


class TestSimEntropy(EntropyContract):
    @pytest.fixture
    def harness(self) -> SimEntropy:
        return SimEntropy("contract")


def test_equal_seeds_give_equal_identifiers_and_choices() -> None:
    one, same, other = SimEntropy("17/a"), SimEntropy("17/a"), SimEntropy("17/b")
    assert [one.uuid() for _ in range(10)] == [same.uuid() for _ in range(10)]
    assert one.random.random() == same.random.random()
    assert one.uuid() != other.uuid()


async def test_wall_clock_follows_the_running_loop() -> None:
    entropy = SimEntropy("17")
    before = asyncio.get_running_loop().time()
    assert WORLD_BEGINS_MS + before * 1_000 - 1 <= entropy.wall_ms()
    assert entropy.wall_ms() <= WORLD_BEGINS_MS + asyncio.get_running_loop().time() * 1_000


def test_wall_clock_has_an_offset_drifts_and_jumps() -> None:
    now_s = 0.0
    entropy = SimEntropy("17", WallClock(offset_ms=-5_000, drift=0.01, time=lambda: now_s))
    assert entropy.wall_ms() == WORLD_BEGINS_MS - 5_000
    now_s = 100.0
    assert entropy.wall_ms() == WORLD_BEGINS_MS - 5_000 + 101_000
    entropy.clock.jump(-60_000)
    assert entropy.wall_ms() == WORLD_BEGINS_MS - 5_000 + 41_000
    entropy.clock.set_drift(-0.01)
    assert entropy.wall_ms() == WORLD_BEGINS_MS - 5_000 + 41_000
    now_s = 200.0
    assert entropy.wall_ms() == WORLD_BEGINS_MS - 5_000 + 41_000 + 99_000
