"""pytest plugin: a cluster for the session, a namespace for each test. Known to pytest when magnetar is installed.

It costs nothing until a test asks for a fixture; then half a second, once. With xdist every worker is a process and
gets a cluster of its own, on ports of its own.

Format:    `magnetar_bookies = 3`, `magnetar_brokers = 1` and `magnetar_settings = SECTION.KEY=VALUE …`, one a line, in
           pytest's configuration.
Read next: docs/testing.md
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from magnetar.testing.cluster_thread import MagnetarCluster, MagnetarTest

DEFAULT_BOOKIES = "3"
DEFAULT_BROKERS = "1"
_SETTINGS = ("kafka.enabled=true", "kafka.group_initial_rebalance_delay_ms=0")


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addini("magnetar_bookies", "bookies of the tests' cluster", default=DEFAULT_BOOKIES)
    parser.addini("magnetar_brokers", "brokers of the tests' cluster", default=DEFAULT_BROKERS)
    parser.addini("magnetar_settings", "SECTION.KEY=VALUE of magnetar, one a line", type="linelist", default=[])


@pytest.fixture(scope="session")
def magnetar_cluster(
    pytestconfig: pytest.Config, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[MagnetarCluster]:
    """The cluster of this session, for fixtures of your own that outlive a test."""
    from magnetar.testing.cluster_thread import MagnetarCluster  # Only who asks for a cluster pays for the import.

    worker = os.environ.get("PYTEST_XDIST_WORKER", "t")
    with MagnetarCluster(
        _count(pytestconfig, "bookies"),
        brokers=_count(pytestconfig, "brokers"),
        directory=tmp_path_factory.mktemp("magnetar"),
        settings=[*_SETTINGS, *pytestconfig.getini("magnetar_settings")],
        label=worker,
    ) as cluster:
        yield cluster


def _count(config: pytest.Config, members: str) -> int:
    text = config.getini(f"magnetar_{members}")
    count = int(text) if text.isascii() and text.isdigit() else 0
    if count < 1:
        raise pytest.UsageError(f"magnetar_{members} is {text!r}: write a number of {members}, at least 1")
    return count


@pytest.fixture
def magnetar(magnetar_cluster: MagnetarCluster) -> Iterator[MagnetarTest]:
    """The cluster as this test sees it: URLs, a namespace, faults of members, and waits."""
    with magnetar_cluster.for_test() as test:
        yield test


@pytest.fixture(scope="session")
def pulsar_url(magnetar_cluster: MagnetarCluster) -> str:
    """Where Pulsar clients connect."""
    return magnetar_cluster.pulsar_url


@pytest.fixture(scope="session")
def kafka_bootstrap(magnetar_cluster: MagnetarCluster) -> str:
    """Where Kafka clients connect: `bootstrap.servers`."""
    if not magnetar_cluster.kafka_bootstrap:
        raise pytest.UsageError("kafka.enabled is off in magnetar_settings: leave it out, which turns it on")
    return magnetar_cluster.kafka_bootstrap


@pytest.fixture(scope="session")
def admin_url(magnetar_cluster: MagnetarCluster) -> str:
    """The admin REST API: `{admin_url}/admin/v2/…`."""
    return magnetar_cluster.admin_url


@pytest.fixture
def pulsar_namespace(magnetar: MagnetarTest) -> str:
    """TENANT/NAMESPACE of this test."""
    return magnetar.namespace
