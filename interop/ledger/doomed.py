"""Writers in processes of their own, of either make, that write until they are killed.

Output: `LEDGER ENTRY` for each acknowledged entry, as it goes, and `LEDGER -1` when a ledger was created; one ledger
        for each quorum asked for. What the last whole line of a ledger says was promised to somebody.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path

from interop.apache import write_logging
from interop.bookie.client import ENTRY_BYTES, PASSWORD, Quorum, wait_until
from interop.bookies import ROOT
from interop.java_program import QUICK_JVM, java_command
from magnetar.testing.processes.child import Child

IN_FLIGHT = 100
_CREATED = -1


class Doomed:
    def __init__(self, command: Sequence[str | Path], directory: Path) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._output = directory / "acknowledged"
        with self._output.open("wb") as output:
            self._child = Child(command, log=directory / "log", stdout=output)

    async def killed_after(self, count: int, ledgers: int) -> dict[int, int]:
        """Waits until each ledger has so many entries, then kill -9: ledger → its last acknowledged entry."""

        async def enough() -> bool:
            self._child.raise_if_ended("it was killed")
            found = parse_acknowledged(self._output.read_text())
            return len(found) == ledgers and min(found.values()) >= count - 1

        try:
            await wait_until(enough, f"{count} entries acknowledged in each of {ledgers} ledgers", timeout=60)
        finally:
            self._child.kill()
        return parse_acknowledged(self._output.read_text())


def parse_acknowledged(output: str) -> dict[int, int]:
    """A last line without its end does not count. AssertionError for acknowledgements out of order."""
    last: dict[int, int] = {}
    for line in output[: output.rfind("\n") + 1].splitlines():
        ledger_id, entry_id = map(int, line.split())
        expected = last[ledger_id] + 1 if ledger_id in last else _CREATED
        assert entry_id == expected, f"ledger {ledger_id}: entry {entry_id} was acknowledged, {expected} was next"
        last[ledger_id] = entry_id
    return last


def our_command(zookeeper: str, quorums: Sequence[Quorum]) -> list[str | Path]:
    return [sys.executable, "-m", "interop.ledger.doomed_writer", zookeeper, *map(_sizes, quorums)]


def apache_command(zookeeper: str, quorums: Sequence[Quorum], directory: Path) -> list[str | Path]:
    directory.mkdir(parents=True, exist_ok=True)
    words = [zookeeper, ROOT, PASSWORD, str(ENTRY_BYTES), str(IN_FLIGHT), *map(_sizes, quorums)]
    jvm = ("-Xmx256m", QUICK_JVM)
    return java_command("DoomedWriter", *words, jvm=jvm, logging=write_logging(directory, "warn"), with_ours=True)


def _sizes(quorum: Quorum) -> str:
    return f"{quorum.ensemble}/{quorum.write}/{quorum.ack}"
