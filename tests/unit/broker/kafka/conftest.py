from __future__ import annotations

from collections.abc import AsyncIterator

import pytest

from tests.unit.broker.kafka.kafka_world import KafkaWorld, kafka_world


@pytest.fixture
async def world() -> AsyncIterator[KafkaWorld]:
    async with kafka_world() as made:
        yield made
