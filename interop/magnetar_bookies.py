"""Our bookies, started as a user starts them. Port 0: the OS chooses once, and the directory keeps the choice.

The command prints one line of JSON when it is ready; the id is taken from there. Configuration in the environment
reaches them, so that a run can be repeated with other settings.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

from interop.bookies import Bookie, Registry, magnetar_program
from magnetar.errors import ProcessFailedError
from magnetar.testing.processes.child import Child


class MagnetarBookie(Bookie):
    def __init__(self, directory: Path, zookeeper: str, *settings: str) -> None:
        """The settings are `section.key=value`."""
        super().__init__(directory, zookeeper)
        self._flags = [flag for setting in settings for flag in ("--set", setting)]

    @property
    def _output(self) -> Path:
        return self.directory / "stdout"

    def _launched(self, log: Path) -> Child:
        with self._output.open("wb") as output:
            return Child(self.command(), log=log, stdout=output)

    @property
    def id(self) -> str:
        """Known when it was ready once."""
        found = parse_ready_line(self._output.read_text())
        if found is None:
            raise ProcessFailedError(f"the bookie in {self.directory} has not said that it is ready")
        return found

    def command(self) -> Sequence[str | Path]:
        url = f"zk://{self.zookeeper}"
        where = ["--metadata", url, "--dir", self.directory / "data", "--port", "0"]
        return [magnetar_program(), "bookie", *where, *self._flags]

    def is_ready(self, registry: Registry) -> bool:
        found = parse_ready_line(self._output.read_text())
        return found is not None and found in registry.available()


def magnetar_bookie(directory: Path, zookeeper: str) -> Bookie:
    return MagnetarBookie(directory, zookeeper)


def parse_ready_line(output: str) -> str | None:
    """The bookie's id; None while the line is not there as a whole."""
    line, newline, _ = output.partition("\n")
    if not newline:
        return None
    try:
        said = json.loads(line)
    except ValueError:
        raise ProcessFailedError(f"the bookie's first line is not JSON: {line!r}") from None
    if not (isinstance(said, dict) and said.get("ready") is True and isinstance(said.get("bookie_id"), str)):
        raise ProcessFailedError(f"the bookie's first line does not say that it is ready and who it is: {line}")
    return str(said["bookie_id"])
