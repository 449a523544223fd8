from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from magnetar.metadata.memory import MemoryServer
from magnetar.runtime.system import SystemRuntime
from tests.contracts.local_harness import LocalHarness
from tests.contracts.metadata_harness import CONTRACT_CONFIG
from tests.contracts.metadata_store import MetadataStoreContract


class TestMemory(MetadataStoreContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[LocalHarness]:
        harness = LocalHarness(MemoryServer(SystemRuntime().entropy, CONTRACT_CONFIG))
        yield harness
        await harness.aclose()
