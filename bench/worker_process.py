"""A process that makes load and stays: each line of JSON on its input is a request, and gets one line as its answer.

Format:    {"op": NAME, …} is answered with {"result": …} or {"error": TEXT}. The process ends when its input closes.
"""

from __future__ import annotations

import json
import logging
import select
import subprocess
import sys
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import Any, Self

from magnetar.errors import ProcessFailedError

ANSWER_TIMEOUT_S = 180.0
_END_TIMEOUT_S = 10.0

log = logging.getLogger(__name__)


class WorkerProcess:
    """`python -m MODULE ARGUMENT …`. `with` starts and ends it."""

    def __init__(self, module: str, *arguments: str, answer_timeout_s: float = ANSWER_TIMEOUT_S) -> None:
        self._module = module
        self._arguments = arguments
        self._answer_timeout_s = answer_timeout_s

    def __enter__(self) -> Self:
        self._process = subprocess.Popen(
            [sys.executable, "-m", self._module, *self._arguments],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
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
        self._process.stdin.write(json.dumps({"op": op, **arguments}) + "\n")
        self._process.stdin.flush()
        ready, _, _ = select.select([self._process.stdout], [], [], self._answer_timeout_s)
        line = self._process.stdout.readline() if ready else ""
        if not line:
            self._process.kill()
            raise ProcessFailedError(
                f"{self._module} did not answer `{op}` within {self._answer_timeout_s:g} s, or ended; what it said is "
                "above"
            )
        answer = json.loads(line)
        if "error" in answer:
            raise ProcessFailedError(f"{self._module} could not `{op}`: {answer['error']}")
        return answer["result"]


def serve_requests(operations: Mapping[str, Callable[..., Any]]) -> None:
    """The worker's half: each operation gets the other fields of its request as keywords."""
    for line in sys.stdin:
        request = json.loads(line)
        try:
            answer = {"result": operations[request.pop("op")](**request)}
        except Exception as error:
            log.exception("a request failed")
            answer = {"error": f"{type(error).__name__}: {error}"}
        print(json.dumps(answer), flush=True)
