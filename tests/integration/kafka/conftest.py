from __future__ import annotations

from collections.abc import Iterator

import pytest

from magnetar.testing.processes.servers import StandaloneProcess


@pytest.fixture(scope="module")
def standalone(tmp_path_factory: pytest.TempPathFactory) -> Iterator[StandaloneProcess]:
    """One for the tests of a module that do not kill it."""
    settings = (
        "kafka.enabled=true",
        "kafka.port=0",
        "kafka.message_bytes_max=2000000",
        "kafka.group_initial_rebalance_delay_ms=0",
    )
    process = StandaloneProcess(tmp_path_factory.mktemp("kafka") / "data", *settings)
    process.start()
    yield process
    assert process.stop() == 0


@pytest.fixture
def bootstrap(standalone: StandaloneProcess) -> str:
    return f"127.0.0.1:{standalone.ready['kafka_port']}"
