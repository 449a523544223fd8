from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio

from magnetar.config.metadata import SqliteConfig
from magnetar.metadata.memory import MemoryServer
from magnetar.metadata.sqlite import open_sqlite_server
from magnetar.runtime.system import SystemRuntime
from tests.contracts.bundle_ownership import BundleOwnershipContract
from tests.contracts.local_harness import LocalHarness
from tests.contracts.metadata_harness import CONTRACT_CONFIG


@pytest.mark.virtual_time
class TestInMemory(BundleOwnershipContract):
    @pytest_asyncio.fixture
    async def harness(self) -> AsyncIterator[LocalHarness]:
        harness = LocalHarness(MemoryServer(SystemRuntime().entropy, CONTRACT_CONFIG))
        yield harness
        await harness.aclose()


class TestOnSqlite(BundleOwnershipContract):
    @pytest_asyncio.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[LocalHarness]:
        path = str(tmp_path / "metadata.db")
        harness = LocalHarness(await open_sqlite_server(path, SystemRuntime(), CONTRACT_CONFIG, SqliteConfig()))
        yield harness
        await harness.aclose()
