"""What the checks and benchmarks need of a Pulsar-compatible server in one process, whoever made it."""

from __future__ import annotations

from pathlib import Path
from typing import Protocol, Self

from magnetar.testing.processes.servers import StandaloneProcess


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
