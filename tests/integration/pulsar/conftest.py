from __future__ import annotations

import logging
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from magnetar.testing.processes.servers import StandaloneProcess


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """One for the tests of a module that do not kill it."""
    process = StandaloneProcess(tmp_path_factory.mktemp("standalone") / "data")
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def mortal(tmp_path: Path) -> Iterator[StandaloneProcess]:
    """One that may be killed. It deduplicates, and keeps everything."""
    settings = ("broker.deduplication=true", "defaults.retention_minutes=-1", "defaults.retention_mb=-1")
    process = StandaloneProcess(tmp_path / "data", *settings)
    process.start()
    yield process
    process.child.kill()


@pytest.fixture
def client(standalone: StandaloneProcess) -> Iterator[pulsar.Client]:
    client = connect(standalone)
    yield client
    client.close()


def connect(process: StandaloneProcess) -> pulsar.Client:
    logger = logging.getLogger("pulsar-client")
    logger.setLevel(logging.CRITICAL)
    return pulsar.Client(process.url, operation_timeout_seconds=30, logger=logger)
