"""SQLite as it is, on a device that fails: reads, writes and syncs end in I/O errors, and the disk is full at times.

Promise:   what the store answered as done, or has shown to a reader, is there after it is opened again, also if the
           process or the machine died. What it refused is not. A write whose outcome is unknown is one or the other,
           whole. A caller meets errors of magnetar and no other, and every operation ends in time.
Writers:   each counts in a pair of nodes, in one transaction, so that a lost, repeated or torn write is seen at once.
Rounds:    each lets faults happen until the store stops or enough was written. Then the store is closed and opened on
           the same files, or on a copy of them as kill -9 or a power loss would leave them.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import random
import shutil
import sys
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from magnetar.config.metadata import MetadataConfig, SqliteConfig
from magnetar.errors import MagnetarError, MetadataError
from magnetar.metadata.local import LocalServer
from magnetar.metadata.sqlite import Connection, open_sqlite_server
from magnetar.metadata.store import ANY_VERSION, MetadataStore, Put
from magnetar.runtime.system import SystemRuntime
from soak.lossy_vfs import Faults, LossyConnection, Recorder, Step, durable, lose_power

SOAK_ROUNDS = 2_000
WRITERS = 4
WRITES_MAX = 40  # Of each writer in a round.
READ_ONLY_SHARE = 0.25  # Of rounds.
VALUE_BYTES = 1_500  # So that SQLite copies its log into the file within a few rounds.
OPENS_MAX = 40  # While faults happen; then they end.
RATES = (0.0, 0.002, 0.01, 0.05)
HANG_S = 30.0
CONFIG = MetadataConfig(url="memory:", operation_timeout_ms=5_000)
FILE = "metadata.db"
CHECKPOINT_PAGES = 40  # Instead of 1,000: checkpoints are a part of every round.


@dataclass(slots=True)
class Counted:
    """What may be found in the nodes of one writer."""

    known: int = 0
    attempted: int = 0
    """Above `known`: the outcome of that write is unknown."""


@dataclass(slots=True)
class Tally:
    outcomes: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    injected: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_ROUNDS, seed, directory)


def run(rounds: int, seed: int, directory: Path) -> dict[str, Any]:
    tally = Tally()
    try:
        asyncio.run(_run(rounds, random.Random(seed), directory, tally))
    except TimeoutError:
        tally.wrong.append(f"an operation did not end within {HANG_S:g} s")
    outcomes = tally.outcomes
    seen = all(outcomes[each] for each in ("done", "refused", "unknown"))
    return {"rounds": rounds, "outcomes": dict(sorted(outcomes.items())), "ends": dict(sorted(tally.ends.items())),
            "injected": dict(sorted(tally.injected.items())), "wrong": tally.wrong[:20],
            "passed": not tally.wrong and seen}  # fmt: skip


async def _run(rounds: int, choices: random.Random, directory: Path, tally: Tally) -> None:
    counted = [Counted() for _ in range(WRITERS)]
    place = directory / "0"
    place.mkdir()
    steps: list[Step] = []
    for number in range(1, rounds + 1):
        faults = Faults(choices)
        recorder = Recorder(faults, steps)
        server = await _open(place, recorder, choices, tally)
        store = server.connect()
        faults.rate = 0.0
        await _look(store, counted, tally, f"round {number}")
        faults.rate = choices.choice(RATES)
        if choices.random() < READ_ONLY_SHARE:  # What was shown to a reader must stay, although nothing was written.
            writes = [0] * WRITERS
        else:
            writes = [choices.randint(1, WRITES_MAX) for _ in range(WRITERS)]
        await asyncio.gather(*(_write(store, each, counted[each], writes[each], tally) for each in range(WRITERS)))
        after = directory / str(number)
        end = choices.choice(("closed", "killed", "power lost"))
        tally.ends[end] += 1
        if end == "power lost":
            after.mkdir()
            lose_power(recorder.steps, len(recorder.steps), after, choices)
            steps = durable(after)
        elif end == "killed":
            shutil.copytree(place, after)
            steps = list(recorder.steps)  # What was not synced is still in the kernel's memory only.
        async with asyncio.timeout(HANG_S):
            await server.aclose()  # Its last checkpoint may fail as well.
        if end == "closed":
            shutil.copytree(place, after)
            steps = list(recorder.steps)
        tally.injected += faults.injected
        recorder.unregister()
        shutil.rmtree(place)
        place = after
        if tally.wrong:
            return


async def _open(place: Path, recorder: Recorder, choices: random.Random, tally: Tally) -> LocalServer:
    """Opens the store, at first while the device fails."""

    def connect(path: str) -> Connection:
        return LossyConnection(path, recorder, checkpoint_pages=CHECKPOINT_PAGES)

    recorder.faults.rate = choices.choice(RATES)
    for tries in range(OPENS_MAX + 1):
        if tries == OPENS_MAX:
            recorder.faults.rate = 0.0
        try:
            async with asyncio.timeout(HANG_S):
                return await open_sqlite_server(str(place / FILE), SystemRuntime(), CONFIG, SqliteConfig(), connect)
        except MagnetarError as error:
            tally.outcomes[f"not opened: {type(error).__name__}"] += 1
            if not isinstance(error, MetadataError) or error.outcome_unknown or not str(error):
                tally.wrong.append(f"not opened, with an error that does not say so: {error!r}")
        except Exception as error:
            tally.wrong.append(f"not opened, with an error that is none of ours: {error!r}")
    raise AssertionError(f"the store in {place} does not open on a device that works; so far: {tally.wrong}")


async def _write(store: MetadataStore, writer: int, counted: Counted, writes: int, tally: Tally) -> None:
    """Counts until the store stops, or an outcome is unknown."""
    for _ in range(writes):
        number = counted.known + 1
        value = str(number).encode().rjust(VALUE_BYTES)
        counted.attempted = number
        try:
            async with asyncio.timeout(HANG_S):
                await store.transact([Put(f"/w{writer}", value, ANY_VERSION), Put(f"/w{writer}/twin", value)])
        except MetadataError as error:
            if error.outcome_unknown:
                tally.outcomes["unknown"] += 1
                return
            counted.attempted = counted.known
            tally.outcomes["refused" if error.retryable else f"stopped: {type(error).__name__}"] += 1
            if not error.retryable:
                return
        except Exception as error:
            tally.wrong.append(f"writer {writer}: an error that is none of ours: {error!r}")
            return
        else:
            counted.known = number
            tally.outcomes["done"] += 1


async def _look(store: MetadataStore, counted: list[Counted], tally: Tally, when: str) -> None:
    """Compares what is there with what may be; what is shown now must stay. The device works meanwhile."""
    for writer, its in enumerate(counted):
        paths = (f"/w{writer}", f"/w{writer}/twin")
        nodes = [await store.get(path) for path in paths]
        if all(node is None for node in nodes) and its.known == 0:
            for path in paths:
                await store.create(path, b"0")
            its.attempted = 0
            continue
        first, twin = (-1 if node is None else int(node.value) for node in nodes)
        if first != twin or first not in (its.known, its.attempted):
            tally.wrong.append(
                f"{when}, writer {writer}: {first} and {twin} are there, {its.known} was acknowledged and "
                f"{its.attempted} attempted"
            )
        its.known = its.attempted = first


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-sqlite-errors-") as directory:
        verdict = run(arguments.rounds, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
