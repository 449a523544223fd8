"""Our client as a generator of load: bench/ledger_worker.py in a process that stays."""

from __future__ import annotations

from typing import Any

from bench.worker_process import WorkerProcess
from interop.bookies import ROOT


class OurGenerator(WorkerProcess):
    def __init__(self) -> None:
        super().__init__("bench.ledger_worker")

    def ask(self, op: str, **arguments: Any) -> Any:
        return super().ask(op, root=ROOT, **arguments)
