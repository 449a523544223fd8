"""Our client as a generator of load: bench/ledger_worker.py in a process that stays."""

from __future__ import annotations

import json
import select
import subprocess
import sys
from types import TracebackType
from typing import Any, Self

from interop.bookies import ROOT
from magnetar.errors import ProcessFailedError

WORKER = "bench.ledger_worker"
ANSWER_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 10.0


class OurGenerator:
    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", WORKER], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        try:
            self._process.wait(_END_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        return self._process.pid

    def ask(self, op: str, **arguments: Any) -> Any:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps({"op": op, "root": ROOT, **arguments}) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], ANSWER_TIMEOUT_S)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            raise ProcessFailedError(
                f"{WORKER} did not answer `{op}` within {ANSWER_TIMEOUT_S:g} s, or ended; what it said is above"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise ProcessFailedError(f"{WORKER} could not `{op}`: {answer['error']}")
        return answer["result"]
