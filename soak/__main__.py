"""Runs the parts one after the other; the last line printed is the JSON verdict, the exit code says the same."""

from __future__ import annotations

import argparse
import json
import secrets
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from soak import (
    autorecovery,
    bookie_kills,
    cluster_chaos,
    descriptors,
    fuzzing,
    index_cuts,
    kafka_kills,
    ledger_chaos,
    pulsar_kills,
    spark_kills,
    sqlite_errors,
    sqlite_kills,
    zookeeper_faults,
)

PARTS: dict[str, list[Callable[[int, Path], dict[str, Any]]]] = {
    "autorecovery": [autorecovery.soak],
    "bookie": [bookie_kills.soak],
    "cluster": [cluster_chaos.soak],
    "kafka": [kafka_kills.soak],
    "ledger": [ledger_chaos.soak],
    "metadata": [sqlite_kills.soak],
    "fuzz": [fuzzing.soak],
    "parts": [index_cuts.soak, descriptors.soak, sqlite_errors.soak, zookeeper_faults.soak],
    "pulsar": [pulsar_kills.soak],
    "spark": [spark_kills.soak],
}


def main() -> None:
    parser = argparse.ArgumentParser(prog="make soak")
    parser.add_argument("part", nargs="?", choices=sorted(PARTS), help="only this part")
    parser.add_argument("--seed", type=int, default=secrets.randbits(31))
    arguments = parser.parse_args()
    print(f"seed {arguments.seed}: repeat with `make soak SEED={arguments.seed}`", flush=True)
    runs = [run for part in ([arguments.part] if arguments.part else sorted(PARTS)) for run in PARTS[part]]
    verdicts = [_timed(run, arguments.seed) for run in runs]
    passed = all(verdict["passed"] for verdict in verdicts)
    print(json.dumps({"seed": arguments.seed, "passed": passed, "runs": verdicts}))
    sys.exit(0 if passed else 1)


def _timed(run: Callable[[int, Path], dict[str, Any]], seed: int) -> dict[str, Any]:
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="magnetar-soak-") as directory:
        verdict = run(seed, Path(directory))
    return {"run": run.__module__, **verdict, "seconds": round(time.monotonic() - began, 1)}


if __name__ == "__main__":
    main()
