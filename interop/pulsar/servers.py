"""What the checks and benchmarks need of a Pulsar-compatible server in one process, whoever made it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from magnetar.testing.processes.servers import BrokerProcess, StandaloneProcess


class Standalone(Protocol):
    @property
    def url(self) -> str: ...

    @property
    def admin_url(self) -> str: ...

    @property
    def pid(self) -> int: ...

    def start(self) -> None: ...

    def wait_ready(self) -> None: ...

    def stop(self) -> object: ...

    def close(self) -> None: ...


class Broker(Standalone, Protocol):
    """One of several brokers of a cluster."""

    @property
    def broker_id(self) -> str: ...

    @property
    def is_running(self) -> bool: ...


class MagnetarStandalone(StandaloneProcess):
    """`magnetar standalone`. Made starting; `wait_ready`; ended by `close`."""

    def __init__(self, directory: Path, *settings: str) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        super().__init__(directory / "data", *settings)
        self.start()

    def start(self) -> None:
        """Returns at once."""
        self.launch()

    def close(self) -> None:
        self.kill()

    def __enter__(self) -> Self:
        return self


class MagnetarBroker(BrokerProcess):
    """`magnetar broker`. Made starting; `wait_ready`; ended by `close`."""

    def __init__(self, directory: Path, metadata: str, *settings: str) -> None:
        super().__init__(directory, metadata, *settings)
        self.start()

    def start(self) -> None:
        """Returns at once."""
        self.launch()

    def close(self) -> None:
        """kill -9. May be started again."""
        self.kill()
