"""RocksDB as it is: a bookie is killed under load, files of its location index are cut, lost or changed, and it starts.

Promise:   the bookie then serves every acknowledged entry, or refuses with an error that says what to do, at its start
           or for a single read. It never says "no such entry" of an entry that it has acknowledged, and never hangs.
Rounds:    each loads some ledgers into a bookie with small caches, so that flushes and log rolls are part of it, and
           kills it with -9 at a random moment. Then each kind of damage is done to the same state, one after the other;
           without any damage nothing may be refused.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import os
import random
import shutil
import sys
import tempfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magnetar.bookie.bookie import Bookie
from magnetar.config.bookie import NO_HTTP, BookieConfig
from magnetar.config.metadata import MetadataConfig
from magnetar.config.root import Config
from magnetar.config.storage import JournalConfig, StorageConfig
from magnetar.errors import MagnetarError
from magnetar.metadata.bookkeeper.cluster import init_cluster
from magnetar.metadata.bookkeeper.paths import BookKeeperPaths
from magnetar.metadata.open import open_store
from magnetar.runtime.metrics import Metrics
from magnetar.runtime.system import SystemRuntime
from magnetar.storage.index import rocksdb_store  # noqa: F401 - imported before the fork
from magnetar.wire.bookkeeper.codes import Code
from soak.forked import Forked, Report, result_of
from workloads.bookie_load import BookieLoad, payload_of

HOST = "127.0.0.1"
SOAK_ROUNDS = 40
LEDGERS = 4
ENTRY_BYTES = 300
IN_FLIGHT = 64
SECONDS_MAX = 60.0
_DENIALS = (Code.ENOENTRY, Code.ENOLEDGER)

Damage = Callable[[Path, random.Random], bool]
"""Changes files of the index; False if it has none of the kind."""


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_ROUNDS, seed, directory)


def run(rounds: int, seed: int, directory: Path, damages: int = 0) -> dict[str, Any]:
    """`damages`: so many kinds in each round, drawn at random; 0: all."""
    choices = random.Random(seed)
    outcomes: Counter[str] = Counter()
    wrong: list[str] = []
    acknowledged = 0
    for number in range(rounds):
        place = directory / f"round-{number}"
        place.mkdir(parents=True)
        known = _load_and_kill(place, choices)
        acknowledged += sum(map(len, known.values()))
        _judge("none", place, known, outcomes, wrong)
        if outcomes["refused: none"]:
            wrong.append(f"round {number}: refused without damage")
        chosen = list(DAMAGES) if not damages else choices.sample(sorted(DAMAGES), damages)
        shutil.copytree(place, directory / "kept")
        for name in chosen:
            if DAMAGES[name](next((place / "bookie").rglob("index")), choices):
                _judge(name, place, known, outcomes, wrong)
            shutil.rmtree(place)
            shutil.copytree(directory / "kept", place)
        shutil.rmtree(directory / "kept")
        shutil.rmtree(place)
    return {"rounds": rounds, "acknowledged": acknowledged, "outcomes": dict(sorted(outcomes.items())),
            "wrong": wrong[:20], "passed": not wrong and acknowledged > rounds}  # fmt: skip


# --- one round --------------------------------------------------------------------------------------------------------


def _config(place: Path) -> Config:
    return Config(
        metadata=MetadataConfig(url=f"sqlite:{place}/metadata.db", session_timeout_ms=200),
        bookie=BookieConfig(dir=str(place / "bookie"), port=0, http_port=NO_HTTP),
        storage=StorageConfig(write_cache_bytes_max=65_536, log_bytes_max=2**20),
        journal=JournalConfig(file_bytes_max=262_144, group_bytes_max=65_536, preallocated_bytes=65_536),
    )


def _load_and_kill(place: Path, choices: random.Random) -> dict[int, list[int]]:
    """What was acknowledged before the kill, by ledger."""
    wanted = choices.randint(500, 3_000)
    known: dict[int, list[int]] = {ledger: [] for ledger in range(LEDGERS)}
    with Forked(lambda report: asyncio.run(_serve_and_load(_config(place), report))) as child:
        count = 0
        for ledger, first, last in child.lines(SECONDS_MAX):
            known[ledger] += range(first, last + 1)
            count += last - first + 1
            if count >= wanted:
                child.kill()
    return known


async def _serve_and_load(config: Config, report: Report) -> None:
    runtime = SystemRuntime()
    async with await open_store(config, runtime) as store:
        await init_cluster(store, BookKeeperPaths(config.metadata.ledgers_root), runtime.entropy, accept_existing=True)
        bookie = await Bookie.open(config, runtime, store, Metrics(), base="/")
        loads = [await BookieLoad.connect(HOST, bookie.port, each, entry_bytes=ENTRY_BYTES) for each in range(LEDGERS)]
        told = dict.fromkeys(range(LEDGERS), 0)
        for load in loads:
            load.begin(IN_FLIGHT)
        while True:
            for load in loads:
                before = told[load.ledger_id]
                await load.wait_for(lambda load, before=before: len(load.acknowledged) > before)  # type: ignore[misc]
                assert load.acknowledged[before:] == list(range(before, len(load.acknowledged)))
                told[load.ledger_id] = len(load.acknowledged)
                report((load.ledger_id, before, len(load.acknowledged) - 1))


def _judge(damage: str, place: Path, known: dict[int, list[int]], outcomes: Counter[str], wrong: list[str]) -> None:
    try:
        found = result_of(lambda report: asyncio.run(_start_and_read(_config(place), known, report)), SECONDS_MAX)
    except TimeoutError:
        found = {"crashed": "it hangs"}
    if found is None:
        found = {"crashed": "it ended with an error that is none of ours: see above"}
    if "crashed" in found or found.get("denied"):
        wrong.append(f"{damage}: {found}")
    kind = "refused" if "refused" in found else "unreadable" if found.get("unreadable") else "served"
    outcomes[f"{kind}: {damage}"] += 1


async def _start_and_read(config: Config, known: dict[int, list[int]], report: Report) -> None:
    runtime = SystemRuntime()
    try:
        async with await open_store(config, runtime) as store:
            bookie = await Bookie.open(config, runtime, store, Metrics(), base="/")
            denied = unreadable = 0
            for ledger, entries in known.items():
                reader = await BookieLoad.connect(HOST, bookie.port, ledger, entry_bytes=ENTRY_BYTES)
                for at in range(0, len(entries), 500):
                    part = entries[at : at + 500]
                    answers = await asyncio.gather(*map(reader.read, part))
                    for entry, (code, payload) in zip(part, answers, strict=True):
                        denied += code in _DENIALS
                        denied += code is Code.EOK and payload != payload_of(ledger, entry, ENTRY_BYTES)
                        unreadable += code is not Code.EOK and code not in _DENIALS
                await reader.aclose()
            report({"denied": denied, "unreadable": unreadable})
            os._exit(0)  # An orderly end is not what is asked here.
    except MagnetarError as error:
        report({"refused": str(error)} if str(error) else {"crashed": "an error without a text"})


# --- damage -----------------------------------------------------------------------------------------------------------


def _files(index: Path, pattern: str) -> list[Path]:
    return sorted(path for path in index.glob(pattern) if path.is_file())


def _to_one(pattern: str, change: Callable[[Path, random.Random], None]) -> Damage:
    def damage(index: Path, choices: random.Random) -> bool:
        found = [path for path in _files(index, pattern) if path.stat().st_size]
        if found:
            change(choices.choice(found), choices)
        return bool(found)

    return damage


def _cut(path: Path, choices: random.Random) -> None:
    size = choices.randrange(path.stat().st_size)
    with path.open("r+b") as file:
        file.truncate(size)


def _cut_a_little(path: Path, choices: random.Random) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.truncate(size - choices.randint(1, min(size, 64)))


def _flip(path: Path, choices: random.Random) -> None:
    content = bytearray(path.read_bytes())
    content[choices.randrange(len(content))] ^= 1 << choices.randrange(8)
    path.write_bytes(content)


def _zero_the_end(path: Path, choices: random.Random) -> None:
    content = bytearray(path.read_bytes())
    at = choices.randrange(len(content))
    content[at:] = bytes(len(content) - at)
    path.write_bytes(content)


def _remove(path: Path, _: random.Random) -> None:
    path.unlink()


def _empty(path: Path, _: random.Random) -> None:
    path.write_bytes(b"")


def _all_gone(index: Path, _: random.Random) -> bool:
    shutil.rmtree(index)
    return True


def _all_files_gone(index: Path, _: random.Random) -> bool:
    for path in _files(index, "*"):
        path.unlink()
    return True


DAMAGES: dict[str, Damage] = {
    "log cut": _to_one("*.log", _cut),
    "log cut a little": _to_one("*.log", _cut_a_little),
    "log flipped": _to_one("*.log", _flip),
    "log's end zeroed": _to_one("*.log", _zero_the_end),
    "log gone": _to_one("*.log", _remove),
    "table cut": _to_one("*.sst", _cut),
    "table flipped": _to_one("*.sst", _flip),
    "table gone": _to_one("*.sst", _remove),
    "table empty": _to_one("*.sst", _empty),
    "manifest cut": _to_one("MANIFEST-*", _cut),
    "manifest flipped": _to_one("MANIFEST-*", _flip),
    "manifest gone": _to_one("MANIFEST-*", _remove),
    "CURRENT gone": _to_one("CURRENT", _remove),
    "CURRENT empty": _to_one("CURRENT", _empty),
    "CURRENT flipped": _to_one("CURRENT", _flip),
    "options gone": _to_one("OPTIONS-*", _remove),
    "all files gone": _all_files_gone,
    "directory gone": _all_gone,
}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--damages", type=int, default=0, help="kinds of damage in each round; 0: all")
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-index-cuts-") as directory:
        verdict = run(arguments.rounds, arguments.seed, Path(directory), arguments.damages)
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
