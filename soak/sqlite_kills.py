"""kill -9 of a process that writes to the embedded metadata store, again and again.

Each round forks a child that opens the store and keeps several writers busy, each of them changing two nodes in one
transaction and reporting every acknowledged number. The parent kills it at a random moment, opens the file itself, and
checks that nothing acknowledged is lost, that no transaction is half there, and that the dead session's ephemeral
nodes are gone. Forking needs a process without threads, so run this as a program of its own.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import select
import signal
import struct
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.errors import NodeExistsError
from magnetar.metadata.open import open_store
from magnetar.metadata.store import CreateMode, MetadataStore, Put
from magnetar.runtime.system import SystemRuntime

WRITERS = 8
REPORT = struct.Struct(">II")  # Writer, number acknowledged.
SOAK_KILLS = 2_000
CHILD_SECONDS_MAX = 30.0


@dataclass(slots=True)
class Tally:
    kills: int = 0
    acknowledged: int = 0
    lost: int = 0
    torn: int = 0
    ephemeral_left: int = 0
    unasked: int = 0

    @property
    def passed(self) -> bool:
        wrong = self.lost + self.torn + self.ephemeral_left + self.unasked
        return self.kills > 0 and self.acknowledged >= self.kills and wrong == 0


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_KILLS, seed, directory)


def run(kills: int, seed: int, directory: Path) -> dict[str, Any]:
    random_source = random.Random(seed)
    config = Config(metadata=MetadataConfig(url=f"sqlite:{directory}/metadata.db", session_timeout_ms=1_000))
    tally = Tally()
    known = asyncio.run(_numbers(config, tally, {}))
    for _ in range(kills):
        acknowledged = _kill_one_writer(config, known, random_source)
        tally.kills += 1
        tally.acknowledged += sum(acknowledged[writer] - known[writer] for writer in acknowledged)
        known = asyncio.run(_numbers(config, tally, acknowledged))
    return {"kills": tally.kills, "acknowledged": tally.acknowledged, "lost": tally.lost, "torn": tally.torn,
            "ephemeral_left": tally.ephemeral_left, "unasked": tally.unasked, "passed": tally.passed}  # fmt: skip


def _kill_one_writer(config: Config, known: dict[int, int], random_source: random.Random) -> dict[int, int]:
    """Returns the highest number acknowledged to each writer before the kill."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(reading)
        try:
            asyncio.run(_write_for_ever(config, known, writing))
        finally:
            os._exit(1)  # Only reached by an error: the parent sees the pipe end.
    os.close(writing)
    try:
        reports = _read_reports(reading, random_source.randint(1, 60))
        time.sleep(random_source.random() * 0.003)  # Not a wait for anything: the moment of death is the random input.
    finally:
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    while rest := os.read(reading, 65_536):
        reports += rest
    os.close(reading)
    acknowledged = dict(known)
    for writer, number in REPORT.iter_unpack(reports[: len(reports) // REPORT.size * REPORT.size]):
        acknowledged[writer] = max(acknowledged[writer], number)
    return acknowledged


def _read_reports(reading: int, count: int) -> bytes:
    reports = b""
    deadline = time.monotonic() + CHILD_SECONDS_MAX
    while len(reports) < count * REPORT.size:
        ready, _, _ = select.select([reading], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            raise SystemExit(f"the writer made no progress within {CHILD_SECONDS_MAX:g} s")
        got = os.read(reading, 65_536)
        if not got:
            raise SystemExit("the writer ended by itself; its error is above")
        reports += got
    return reports


async def _write_for_ever(config: Config, known: dict[int, int], pipe: int) -> None:
    async with await open_store(config, SystemRuntime()) as store:
        await store.create("/alive", mode=CreateMode.EPHEMERAL)
        await asyncio.gather(*(_writer(store, writer, known[writer], pipe) for writer in range(WRITERS)))


async def _writer(store: MetadataStore, writer: int, number: int, pipe: int) -> None:
    while True:
        number += 1
        value = str(number).encode()
        await store.transact([Put(f"/w{writer}", value), Put(f"/w{writer}/twin", value)])
        os.write(pipe, REPORT.pack(writer, number))


async def _numbers(config: Config, tally: Tally, acknowledged: dict[int, int]) -> dict[int, int]:
    """Opens the store after a kill, checks it against what was acknowledged, and returns what is there."""
    async with await open_store(config, SystemRuntime()) as store:
        if await store.get("/alive") is not None:
            tally.ephemeral_left += 1
        return {writer: await _number(store, writer, tally, acknowledged.get(writer, 0)) for writer in range(WRITERS)}


async def _number(store: MetadataStore, writer: int, tally: Tally, acknowledged: int) -> int:
    for path in (f"/w{writer}", f"/w{writer}/twin"):
        try:
            await store.create(path, b"0")
        except NodeExistsError:
            continue
        tally.lost += acknowledged > 0
    values = [await store.get(path) for path in (f"/w{writer}", f"/w{writer}/twin")]
    first, twin = (int(node.value) if node is not None else -1 for node in values)
    tally.torn += first != twin
    tally.lost += first < acknowledged
    tally.unasked += first > acknowledged + 1  # One more than acknowledged was under way, never two.
    return first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=200)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-kills-") as directory:
        verdict = run(arguments.kills, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
