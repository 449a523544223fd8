from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.pulsar.broker_world import BrokerWorld, broker_world


@pytest.fixture
async def world() -> AsyncIterator[BrokerWorld]:
    async with broker_world() as made:
        yield made
