"""What the checks of this part share: one mixed cluster, and Apache's Java client in a process."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pulsar
import pytest

from interop.cluster.mixed import NAMESPACE, Mixed, ask
from interop.jars import PULSAR
from interop.java_program import QUICK_JVM, JavaProgram
from workloads.pulsar_load import connect


@pytest.fixture(scope="package")
def directory() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        yield Path(temporary)


@pytest.fixture(scope="package")
def mixed(directory: Path) -> Iterator[Mixed]:
    with Mixed(directory) as running:
        namespace = f"/admin/v2/namespaces/{NAMESPACE}"
        ask(running.brokers["magnetar"], "POST", f"{namespace}/deduplication", True)
        forever = {"retentionTimeInMinutes": -1, "retentionSizeInMB": -1}  # Checks read topics from the beginning.
        ask(running.brokers["magnetar"], "POST", f"{namespace}/retention", forever)
        yield running


@pytest.fixture(scope="package")
def program(directory: Path) -> Iterator[JavaProgram]:
    with JavaProgram("PulsarPrograms", directory, jvm=("-Xmx256m", QUICK_JVM), jars=PULSAR) as running:
        yield running


@pytest.fixture
def client(mixed: Mixed, directory: Path) -> Iterator[pulsar.Client]:
    """Of both brokers, which run."""
    mixed.run_only(*mixed.brokers)
    connected = connect(mixed.url, directory / "client.log")
    yield connected
    connected.close()
