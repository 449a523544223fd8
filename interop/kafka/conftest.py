"""What the checks of this part share: one standalone server, a cluster that moves, and Apache's Java client."""

from __future__ import annotations

import secrets
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from interop.jars import KAFKA
from interop.java_program import QUICK_JVM, JavaProgram
from interop.pulsar.servers import MagnetarStandalone
from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import HOST
from workloads.moving_bundles import MovingBundles

SETTINGS = ("kafka.enabled=true", "kafka.group_initial_rebalance_delay_ms=0")
_ANSWER_TIMEOUT_S = 120
_BROKERS = 3


@dataclass(slots=True)
class Server:
    bootstrap: str
    url: str
    """Where Pulsar clients connect."""
    moving: MovingBundles | None = None


@pytest.fixture(scope="package")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        yield Path(temporary)


@pytest.fixture(scope="package")
def program(directory: Path) -> Iterator[JavaProgram]:
    jvm = ("-Xmx256m", QUICK_JVM)
    with JavaProgram("KafkaPrograms", directory, jvm=jvm, answer_timeout_s=_ANSWER_TIMEOUT_S, jars=KAFKA) as running:
        yield running


@pytest.fixture(scope="package")
def standalone(directory: Path) -> Iterator[Server]:
    with MagnetarStandalone(directory / "standalone", *SETTINGS, f"kafka.port={free_port(HOST)}") as running:
        running.wait_ready()
        yield Server(f"{HOST}:{running.ready['kafka_port']}", running.url)


@pytest.fixture(scope="package")
def cluster(directory: Path, standalone: Server) -> Iterator[Server]:
    """Three brokers; a random bundle is unloaded every second."""
    del standalone  # It is stopped last.
    ports = {f"broker-{number}": free_port(HOST) for number in range(1, _BROKERS + 1)}
    own = {name: (f"kafka.port={port}",) for name, port in ports.items()}
    with (
        ProcessCluster(
            directory / "cluster", 3, brokers=_BROKERS, broker_settings=SETTINGS, settings_of=own
        ) as running,
        MovingBundles([broker.admin_url for broker in running.brokers], secrets.randbits(31)) as moving,
    ):
        yield Server(",".join(f"{HOST}:{port}" for port in ports.values()), running.brokers[0].url, moving)
        assert moving.unloads, "no bundle moved"
        assert not moving.failures, moving.failures
