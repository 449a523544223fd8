"""Five bookies, a writer under constant load, and faults in turn; everything acknowledged is read back.

Bookies are killed, paused and started again, and so is the writer: another one recovers its ledger and goes on. The
faults stay within what is promised (workloads.chaos says which), so every acknowledged entry must
be there, in order, once, byte for byte, on at least Qa bookies.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json
import sys
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import MagnetarError
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.open import open_store
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.cluster import ProcessCluster
from workloads.chaos import BOOKIE_SETTINGS, Chaos
from workloads.ledger_check import Tally, count_copies, read_back
from workloads.ledger_writer import Stream

BOOKIES = 5
SOAK_SECONDS = 180.0


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_SECONDS, seed, directory)


def run(seconds: float, seed: int, directory: Path) -> dict[str, Any]:
    with ProcessCluster(directory, BOOKIES, BOOKIE_SETTINGS) as cluster:
        return asyncio.run(_run(cluster, seconds, seed, directory))


async def _run(cluster: ProcessCluster, seconds: float, seed: int, directory: Path) -> dict[str, Any]:
    config = Config(metadata=MetadataConfig(url=cluster.metadata))
    runtime = SystemRuntime()
    async with await open_store(config, runtime) as store, LedgerClient(store, config, runtime) as client:
        chaos = Chaos(cluster, client, directory, seed)
        try:
            stopped_by = await _stopped_by(chaos.run(seconds))
        finally:
            chaos.end()
        cluster.make_whole()
        tally = Tally()
        unread = await _stopped_by(_check(client, chaos.stream, tally))
    return _verdict(chaos, tally, stopped_by or unread)


async def _check(client: LedgerClient, stream: Stream, tally: Tally) -> None:
    await read_back(client, stream, tally)
    await count_copies(client, stream, tally)


async def _stopped_by(work: Coroutine[None, None, None]) -> str | None:
    """None if it was done to its end. After chaos that was stopped, what is acknowledged is checked all the same."""
    try:
        await work
    except (MagnetarError, AssertionError) as error:
        return f"{type(error).__name__}: {error}"
    return None


def _verdict(chaos: Chaos, tally: Tally, stopped_by: str | None) -> dict[str, Any]:
    return {
        **{name: value for name, value in dataclasses.asdict(tally).items() if name != "notes"},
        "longest_stall_s": round(chaos.stream.longest_stall_s, 2),
        "longest_takeover_s": round(chaos.longest_takeover_s, 2),
        "faults": dict(chaos.faults),
        "stopped_by": stopped_by,
        "notes": tally.notes,
        "passed": tally.passed and stopped_by is None,
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-ledger-chaos-") as directory:
        verdict = run(arguments.seconds, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
