"""kill -9 of a bookie under load, again and again; every acknowledged entry is read back, byte for byte.

Every kill comes while adds are unanswered and after new acknowledgements. Small caches make flushes, log rolls and
journal rolls part of every round.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from magnetar.testing.processes.servers import BookieProcess, init_cluster
from workloads.bookie_load import BookieLoad

HOST = "127.0.0.1"
SOAK_KILLS = 300
IN_FLIGHT = 64
SMALL = (
    "storage.write_cache_bytes_max=65536",
    "storage.log_bytes_max=1048576",
    "journal.file_bytes_max=262144",
    "journal.group_bytes_max=65536",
    "journal.preallocated_bytes=65536",
)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_KILLS, seed, directory)


def run(kills: int, seed: int, directory: Path) -> dict[str, Any]:
    choices = random.Random(seed)
    metadata = f"sqlite:{directory}/metadata.db"
    init_cluster(metadata)
    bookie = BookieProcess(directory / "bookie", metadata, *SMALL)
    loads: dict[int, BookieLoad] = {}
    wrong = unanswered = 0
    bookie.start()
    try:
        for ledger_id in range(kills):
            load = loads[ledger_id] = asyncio.run(_load_until_killed(bookie, ledger_id, choices))
            unanswered += load.in_flight > 0
            bookie.start()
            checked = [ledger_id, *choices.sample(range(ledger_id), min(3, ledger_id))]
            wrong += sum(asyncio.run(_count_wrong(bookie, each, loads[each])) for each in checked)
        wrong += sum(asyncio.run(_count_wrong(bookie, each, load)) for each, load in loads.items())
    finally:
        bookie.kill()
    total = sum(len(load.acknowledged) for load in loads.values())
    return {
        "kills": kills, "kills_with_unanswered_adds": unanswered, "acknowledged": total, "wrong_or_lost": wrong,
        "passed": wrong == 0 and unanswered == kills and all(load.acknowledged for load in loads.values()),
    }  # fmt: skip


async def _load_until_killed(bookie: BookieProcess, ledger_id: int, choices: random.Random) -> BookieLoad:
    load = await BookieLoad.connect(HOST, bookie.port, ledger_id, entry_bytes=choices.choice((10, 100, 1_000, 8_000)))
    wanted = choices.randint(1, 1_500)
    load.begin(IN_FLIGHT)
    await load.wait_for(lambda load: len(load.acknowledged) >= wanted)
    bookie.kill()
    await load.wait_for(lambda load: load.is_lost)
    assert not load.refused, f"refused without a reason: {load.refused[:3]}"
    return load


async def _count_wrong(bookie: BookieProcess, ledger_id: int, load: BookieLoad) -> int:
    reader = await BookieLoad.connect(HOST, bookie.port, ledger_id, entry_bytes=load.entry_bytes)
    wrong = await reader.wrong_entries(load.acknowledged)
    await reader.aclose()
    return len(wrong)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=30)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-bookie-kills-") as directory:
        verdict = run(arguments.kills, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
