"""A real `magnetar broker` process: started, killed and started again on the same ports."""

from __future__ import annotations

from pathlib import Path

from magnetar.testing.bookie_process import MAGNETAR
from magnetar.testing.standalone_process import StandaloneProcess


class BrokerProcess(StandaloneProcess):
    """Owns the child. Its metadata must be initialised, and there must be bookies."""

    def __init__(self, directory: Path, metadata: str, *settings: str) -> None:
        """`directory` is where its log goes, under the same name."""
        super().__init__(directory)
        ports = ["--port", str(self.port), "--http-port", str(self.http_port)]
        flags = [flag for setting in settings for flag in ("--set", setting)]
        self._command = [*MAGNETAR, "broker", "--metadata", metadata, *ports, *flags]
