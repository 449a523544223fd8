"""The system's entropy against the contract."""

from __future__ import annotations

import time

import pytest

from magnetar.runtime.system import SystemEntropy
from tests.contracts.entropy import EntropyContract


class TestSystemEntropy(EntropyContract):
    @pytest.fixture
    def harness(self) -> SystemEntropy:
        return SystemEntropy()

    async def test_wall_clock_is_the_machines(self, harness: SystemEntropy) -> None:
        before = time.time()
        now = harness.wall_ms() / 1_000
        assert before - 1 < now < time.time() + 1

    async def test_random_numbers_cannot_be_seeded(self, harness: SystemEntropy) -> None:
        with pytest.raises(NotImplementedError):
            harness.random.getstate()
