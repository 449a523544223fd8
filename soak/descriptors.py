"""File descriptors running out: clients open more connections than a process may have, on every port it has.

Promise:   the process lives, does not spin, keeps serving the clients that it has, and stores what they send, although
           that needs new files; when the connections are gone, new ones are welcome on every port.
Measure:   the process reports each round of load with the times at which it began and ended. A round counts for what
           this program did before it only if it began later: earlier reports may still wait in the pipe.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import json
import random
import resource
import socket
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvloop

from magnetar.storage.index import rocksdb_store  # noqa: F401 - imported before the fork
from magnetar.testing.cluster import PulsarCluster
from soak.forked import Forked, Report
from workloads.bookie_load import BookieLoad

HOST = "127.0.0.1"
SOAK_ROUNDS = 30
LIMIT = 160  # About thirty are in use before the first client comes.
BURST = 300
SECONDS_MAX = 60.0
PAUSE_S = 0.3  # In each round, after its load: not a wait for anything, but time in which a spinning loop is seen.
ROUNDS_PER_FLOOD = 3
SPIN_SHARE_MAX = 0.3  # Of a core. A loop that spins takes all that it can get of one; rounds of load take a twentieth.
SETTINGS = (
    "storage.write_cache_bytes_max=65536",
    "storage.log_bytes_max=1048576",
    "journal.file_bytes_max=262144",
    "journal.group_bytes_max=65536",
    "journal.preallocated_bytes=65536",
)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_ROUNDS, seed, directory)


def run(rounds: int, seed: int, directory: Path) -> dict[str, Any]:
    choices = random.Random(seed)
    wrong: list[str] = []
    turned_away = 0
    with Forked(lambda report: uvloop.run(_serve(directory, report))) as child:
        reports = child.lines(SECONDS_MAX)
        ports: dict[str, int] = next(reports)
        load = _RoundsOfLoad(reports, wrong)
        try:
            for _ in range(rounds):
                name = choices.choice(sorted(ports))
                flood = _flood(ports[name], LIMIT + choices.randrange(100))
                turned_away += sum(_is_closed(each) for each in flood)
                # While nothing is left: all that it takes must still be stored, in new files.
                share = load.cpu_share_from_now(ROUNDS_PER_FLOOD)
                if share > SPIN_SHARE_MAX:
                    wrong.append(f"{name}: it spins, with {share:.2f} of a core")
                for each in flood:
                    each.close()
                load.cpu_share_from_now(1)
                wrong += [f"{each}: no connection afterwards" for each in ports if not _is_welcome(ports[each])]
        except (StopIteration, TimeoutError) as error:
            wrong.append(f"the process ended, or says nothing: {error!r}")
    return {"rounds": rounds, "acknowledged": load.acknowledged, "turned_away": turned_away, "wrong": wrong[:20],
            "passed": not wrong and load.acknowledged > 0 and turned_away > 0}  # fmt: skip


async def _serve(directory: Path, report: Report) -> None:
    resource.setrlimit(resource.RLIMIT_NOFILE, (LIMIT, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
    async with PulsarCluster(directory=directory / "cluster", settings=SETTINGS) as cluster:
        bookie = cluster.bookies.nodes[0].running
        admin_port = cluster.brokers[0].http_port
        load = await BookieLoad.connect(HOST, bookie.port, 1_000_000, entry_bytes=1_000)
        report({"bookie": bookie.port, "broker": cluster.front_end.port, "admin": admin_port})
        while True:
            began, began_cpu_s = time.monotonic(), time.process_time()
            wanted = len(load.acknowledged) + BURST
            load.begin(32, load.first_entry)
            await load.wait_for(lambda load, wanted=wanted: len(load.acknowledged) >= wanted)  # type: ignore[misc]
            load.finish()
            await load.wait_for(lambda load: not load.in_flight)
            is_lost, wrong = load.is_lost, [] if load.is_lost else await load.wrong_entries(load.acknowledged[-50:])
            await asyncio.sleep(PAUSE_S)
            report(
                {"acknowledged": len(load.acknowledged), "wrong": wrong, "refused": len(load.refused), "lost": is_lost,
                 "began": began, "seconds": time.monotonic() - began, "cpu_s": time.process_time() - began_cpu_s}
            )  # fmt: skip


class _RoundsOfLoad:
    """What the process reports, one round after the other. All are checked: its client is served in each."""

    def __init__(self, reports: Iterator[dict[str, Any]], wrong: list[str]) -> None:
        self.acknowledged = 0
        self._reports = reports
        self._wrong = wrong

    def cpu_share_from_now(self, rounds: int) -> float:
        """Waits for this many rounds that begin from now on. Returns the share of a core that was used in them."""
        now = time.monotonic()
        while (first := self._next())["began"] < now:
            pass
        counted = [first] + [self._next() for _ in range(rounds - 1)]
        return float(sum(each["cpu_s"] for each in counted) / sum(each["seconds"] for each in counted))

    def _next(self) -> dict[str, Any]:
        found = next(self._reports)
        if found["acknowledged"] <= self.acknowledged or found["wrong"] or found["refused"] or found["lost"]:
            self._wrong.append(f"the client that was there is not served: {found}")
        self.acknowledged = found["acknowledged"]
        return found


def _flood(port: int, count: int) -> list[socket.socket]:
    return list(_connections(port, count))


def _connections(port: int, count: int) -> Iterator[socket.socket]:
    for _ in range(count):
        connection = socket.socket()
        connection.settimeout(5)
        with contextlib.suppress(OSError):  # A full queue of those that wait to be accepted.
            connection.connect((HOST, port))
        yield connection


def _is_closed(connection: socket.socket) -> bool:
    connection.settimeout(0.01)
    try:
        return connection.recv(1) == b""
    except TimeoutError:
        return False
    except OSError:
        return True


def _is_welcome(port: int) -> bool:
    """Whether a connection stays open. The flood's may take a moment to be gone."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        with socket.socket() as connection:
            connection.settimeout(5)
            connection.connect((HOST, port))
            connection.settimeout(0.2)
            try:
                if connection.recv(1) != b"":
                    return True
            except TimeoutError:
                return True
            except OSError:
                pass
    return False


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-descriptors-") as directory:
        verdict = run(arguments.rounds, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
