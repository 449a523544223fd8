"""kazoo and a real ZooKeeper as they are: a server that pauses, lags, is killed, and connections that break.

Promise:   what was acknowledged is there afterwards; a write that failed for certain is not; one whose outcome is
           unknown is one or the other. Every operation ends within its timeout, the client does not spin, and when the
           faults are over it works again by itself.
Writers:   each counts in a node of its own, by compare-and-set, so that a lost or repeated write is seen at once.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import sys
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import BadVersionError, MetadataError
from magnetar.metadata.open import open_store
from magnetar.metadata.store import MetadataStore
from magnetar.runtime.system import SystemRuntime
from magnetar.testing.processes.tcp_proxy import TcpProxy
from magnetar.testing.processes.zookeeper import HOST, ZooKeeperServer
from magnetar.testing.waiting import until

SOAK_FAULTS = 150
WRITERS = 4
OPERATION_S = 3.0
LATE_S = 15.0  # Beyond an operation's timeout: a busy machine is late, and a hang is for ever.
SPIN_SHARE_MAX = 0.8  # Of a core, over the whole run.
RECOVERY_S = 60.0


@dataclass(slots=True)
class Tally:
    faults: dict[str, int] = field(default_factory=dict)
    acknowledged: int = 0
    refused: int = 0
    unknown: int = 0
    slowest_s: float = 0.0
    wrong: list[str] = field(default_factory=list)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_FAULTS, seed, directory)


def run(faults: int, seed: int, directory: Path) -> dict[str, Any]:
    tally = Tally()
    with ZooKeeperServer(directory / "zookeeper") as server:
        began_s, cpu_s = time.monotonic(), time.process_time()
        asyncio.run(_run(server, faults, random.Random(seed), tally))
        share = (time.process_time() - cpu_s) / (time.monotonic() - began_s)
    if share > SPIN_SHARE_MAX:
        tally.wrong.append(f"it spins, with {share:.2f} of a core")
    return {"faults": tally.faults, "acknowledged": tally.acknowledged, "refused": tally.refused,
            "unknown": tally.unknown, "slowest_s": round(tally.slowest_s, 2), "wrong": tally.wrong[:20],
            "passed": not tally.wrong and tally.acknowledged >= 10}  # fmt: skip


async def _run(server: ZooKeeperServer, faults: int, choices: random.Random, tally: Tally) -> None:
    async with TcpProxy(HOST, server.port) as proxy, await _open(proxy.address) as store:
        await store.create("/soak")
        for writer in range(WRITERS):
            await store.create(f"/soak/{writer}", b"0")
        stop = asyncio.Event()
        writers = [asyncio.ensure_future(_write(store, f"/soak/{each}", stop, tally)) for each in range(WRITERS)]
        for _ in range(faults):
            await _fault(server, proxy, choices, tally)
            await asyncio.sleep(choices.random() * 0.3)  # Not a wait for anything: when the next fault comes.
        wanted = tally.acknowledged + 10
        try:
            await until(lambda: tally.acknowledged >= wanted, "writes are acknowledged again", seconds=RECOVERY_S)
        except AssertionError as error:
            tally.wrong.append(str(error))
        stop.set()
        await asyncio.gather(*writers)


async def _open(address: str) -> MetadataStore:
    metadata = MetadataConfig(
        url=f"zk://{address}", session_timeout_ms=4_000, operation_timeout_ms=int(OPERATION_S * 1000)
    )
    return await open_store(Config(metadata=metadata), SystemRuntime())


async def _fault(server: ZooKeeperServer, proxy: TcpProxy, choices: random.Random, tally: Tally) -> None:
    kind = choices.choice(("cut", "drop", "lost answer", "lost request", "pause", "pause", "long pause", "restart"))
    if kind in ("long pause", "restart") and choices.random() < 0.7:
        kind = "drop"  # These take long, and end sessions.
    tally.faults[kind] = tally.faults.get(kind, 0) + 1
    match kind:
        case "cut":
            proxy.cut()
            await asyncio.sleep(choices.random())
            proxy.mend()
        case "drop":
            proxy.drop()
        case "lost answer":
            proxy.lose_answer()
        case "lost request":
            proxy.lose_request()
        case "pause" | "long pause":
            server.pause()
            await asyncio.sleep(choices.random() if kind == "pause" else 5 + choices.random())
            server.resume()
        case _:
            server.kill()
            await server.start_async()


async def _write(store: MetadataStore, path: str, stop: asyncio.Event, tally: Tally) -> None:
    known = version = attempted = 0
    while not stop.is_set():
        began_s = time.monotonic()
        is_looking = attempted != known  # The outcome of the last write is unknown.
        try:
            if is_looking:
                known, version = await _look(store, path, known, attempted, tally)
                attempted = known
                continue
            attempted = known + 1
            version = await store.put(path, str(attempted).encode(), version)
            known = attempted
            tally.acknowledged += 1
        except BadVersionError as error:
            tally.wrong.append(f"{path}: somebody else wrote: {error}")
            return
        except MetadataError as error:
            if error.outcome_unknown and not is_looking:
                tally.unknown += 1
            elif not is_looking:
                tally.refused += 1
                attempted = known  # It was not done, for certain: the next write must find the version as it was.
            await asyncio.sleep(0.02)
        finally:
            took_s = time.monotonic() - began_s
            tally.slowest_s = max(tally.slowest_s, took_s)
            if took_s > OPERATION_S + LATE_S:
                tally.wrong.append(f"{path}: an operation took {took_s:.1f} s")


async def _look(store: MetadataStore, path: str, known: int, attempted: int, tally: Tally) -> tuple[int, int]:
    await store.sync()
    node = await store.get(path)
    found = -1 if node is None else int(node.value)
    if node is None or found not in (known, attempted):
        tally.wrong.append(f"{path}: {found} is there, and {known} was acknowledged, {attempted} attempted")
        return attempted, 0 if node is None else node.version
    return found, node.version


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--faults", type=int, default=15)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-zookeeper-faults-") as directory:
        verdict = run(arguments.faults, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
