from __future__ import annotations

import itertools
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
import pytest_asyncio

from magnetar.testing.processes.zookeeper import ZooKeeperServer
from tests.integration.zookeeper.harness import ZooKeeperHarness

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def zookeeper(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ZooKeeperServer]:
    """One server for all tests that do not harm it."""
    with ZooKeeperServer(tmp_path_factory.mktemp("zookeeper")) as server:
        yield server


@pytest.fixture
def own_server(tmp_path: Path) -> Iterator[ZooKeeperServer]:
    """A server that a test may stop, kill and pause."""
    with ZooKeeperServer(tmp_path / "own") as server:
        yield server


@pytest.fixture
def chroot() -> str:
    return f"/test-{next(_numbers)}/tree"


@pytest_asyncio.fixture
async def harness(zookeeper: ZooKeeperServer, chroot: str) -> AsyncIterator[ZooKeeperHarness]:
    harness = ZooKeeperHarness(zookeeper, chroot)
    yield harness
    await harness.aclose()
