from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from magnetar.config.metadata import SqliteConfig
from magnetar.metadata.sqlite import open_sqlite_server
from magnetar.runtime.system import SystemRuntime
from tests.contracts.local_harness import LocalHarness
from tests.contracts.metadata_harness import CONTRACT_CONFIG
from tests.contracts.metadata_store import MetadataStoreContract


class TestSqlite(MetadataStoreContract):
    @pytest_asyncio.fixture
    async def harness(self, tmp_path: Path) -> AsyncIterator[LocalHarness]:
        server = await open_sqlite_server(
            str(tmp_path / "metadata.db"), SystemRuntime(), CONTRACT_CONFIG, SqliteConfig()
        )
        harness = LocalHarness(server)
        yield harness
        await harness.aclose()
