"""The Spark part: pytest files in suite/, each test a check, run in a process of their own.

Spark keeps threads, a JVM and its environment for as long as its process lives: it gets one that ends.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from pathlib import Path

from interop.runner import Suite, Tally

SUITE = Path(__file__).with_name("suite")
_ROOT = Path(__file__).resolve().parents[2]
_TEST_TIMEOUT_S = 300
_SUITE_TIMEOUT_S = 3 * 3600


def run(words: str, tally: Tally) -> None:
    with tempfile.TemporaryDirectory(prefix="magnetar-interop-") as temporary:
        counts = Path(temporary) / "tally.json"
        command = [
            *(sys.executable, "-m", "pytest", str(SUITE.relative_to(_ROOT))),
            *("-p", "interop.spark.reporting", "-p", "no:terminal", "-p", "no:cacheprovider", "-W", "ignore"),
            *("-o", "addopts=--strict-markers --import-mode=importlib"),
            *("-o", f"timeout={_TEST_TIMEOUT_S}", f"--check-words={words}", f"--check-tally={counts}"),
        ]
        process = subprocess.Popen(command, cwd=_ROOT)
        try:
            process.wait(_SUITE_TIMEOUT_S)
        finally:
            process.kill()
            process.wait()
        if not counts.exists():
            print(f"  FAILED  pytest ended with {process.returncode} before it had run anything", flush=True)
            tally.failed += 1
            return
        found = json.loads(counts.read_text())
        tally.passed += found["passed"]
        tally.failed += found["failed"]


PARTS = [Suite("topics as DataFrames, in Spark itself", run)]
