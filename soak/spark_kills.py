"""kill -9 of a Spark driver, its Python workers, the broker and bookies, at random, under a job that copies a topic.

A broker on ZooKeeper and four bookies, a load of keyed messages, a Spark job that copies them to another topic exactly
once. Every kill comes after the job has committed something new, at a random moment of what it does then. What was
killed is started again, the driver on the same checkpoint. In the end the job finishes what there is, and the second
topic must hold every message of the first exactly once, in the order that it has there for its key.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from interop.spark.driver import Driver, kill
from interop.spark.messages import compare, create_topic, read
from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BrokerProcess
from soak.spark_load import KeyedLoad

SOAK_KILLS: Final = 30
BOOKIES: Final = 4
MASTER: Final = "local[2,4]"  # A task that failed is tried again, three times.
RATE, SIZE, KEYS, PER_TRIGGER = 500, 500, 40, 3_000
MOST_COMMITS: Final = 3
MOMENT_S: Final = 1.5
PROGRESS_TIMEOUT_S: Final = 180.0
END_TIMEOUT_S: Final = 400.0
VICTIMS: Final = ("driver", "worker", "broker", "bookie")
BROKER_SETTINGS: Final = (
    "topic.ensemble_size=3",
    "topic.write_quorum=3",
    "topic.ack_quorum=2",
    "topic.ledger_entries_max=500",  # So that ledgers roll under the job.
    "topic.ledger_minutes_min=0",
    "defaults.retention_minutes=-1",
    "defaults.retention_mb=-1",
)
SOURCE, TARGET = "persistent://public/default/copied-from", "persistent://public/default/copied-to"


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_KILLS, seed, directory)


def victims_of(kills: int, choices: random.Random) -> list[str]:
    """Each kind as often as the others, as far as that goes, in random order."""
    chosen = [VICTIMS[number % len(VICTIMS)] for number in range(kills)]
    choices.shuffle(chosen)
    return chosen


class Chaos:
    """Owns the Spark driver."""

    def __init__(self, cluster: ProcessCluster, broker: BrokerProcess, directory: Path, choices: random.Random) -> None:
        self._cluster = cluster
        self._broker = broker
        self._directory = directory
        self._random = choices
        self._checkpoint = directory / "checkpoint"
        self._drivers = 0
        self.faults: Counter[str] = Counter()
        self._do: dict[str, Callable[[], None]] = {
            "driver": self._kill_driver,
            "worker": self._kill_worker,
            "broker": self._kill_broker,
            "bookie": self._kill_bookie,
        }
        self.driver = self._start_driver()

    def strike(self, victim: str) -> None:
        wanted = self._last_commit() + self._random.randint(1, MOST_COMMITS)
        self._wait(lambda: self._last_commit() >= wanted, "new commits of the job")
        time.sleep(self._random.uniform(0, MOMENT_S))  # Not a wait for anything: the moment is the random input.
        self._do[victim]()
        self.faults[victim] += 1
        print(f"  {victim} killed after commit {self._last_commit()}", file=sys.stderr, flush=True)

    def finish(self) -> dict[str, Any]:
        self.driver.ask_to_end()
        return self.driver.answer(END_TIMEOUT_S)

    def _kill_driver(self) -> None:
        self.driver.kill()
        self.driver = self._start_driver()

    def _kill_worker(self) -> None:
        self._wait(lambda: bool(self.driver.python_workers()), "a Python worker")
        kill(self._random.choice(self.driver.python_workers()))

    def _kill_broker(self) -> None:
        self._broker.kill()
        self._broker.start()

    def _kill_bookie(self) -> None:
        victim = self._random.choice(self._cluster.bookies)
        victim.kill()
        time.sleep(self._random.uniform(0, MOMENT_S))
        victim.start()

    def _start_driver(self) -> Driver:
        self._drivers += 1
        driver = Driver(self._directory / f"driver-{self._drivers}", MASTER)
        driver.begin(
            {
                "source": SOURCE, "target": TARGET, "checkpoint": str(self._checkpoint), "until": "stopped",
                "service_url": self._broker.url, "admin_url": self._broker.admin_url, "per_trigger": PER_TRIGGER,
            }
        )  # fmt: skip
        return driver

    def _last_commit(self) -> int:
        """The last micro-batch that Spark calls done."""
        folder = self._checkpoint / "commits"
        return max((int(file.name) for file in folder.glob("*") if file.name.isdigit()), default=-1)

    def _wait(self, condition: Callable[[], bool], what: str) -> None:
        self.driver.child.raise_if_ended(what)
        wait_for(condition, what=what, timeout=PROGRESS_TIMEOUT_S, every=0.1)

    def close(self) -> None:
        self.driver.kill()


def run(kills: int, seed: int, directory: Path) -> dict[str, Any]:
    choices = random.Random(seed)
    with ExitStack() as stack:
        cluster = stack.enter_context(ProcessCluster(directory / "cluster", BOOKIES))
        broker = stack.enter_context(BrokerProcess(directory / "broker", cluster.metadata, *BROKER_SETTINGS))
        for topic in (SOURCE, TARGET):
            create_topic(broker.admin_url, topic)
        load = KeyedLoad(broker.url, SOURCE, directory / "client.log", rate=RATE, size=SIZE, keys=KEYS)
        chaos = Chaos(cluster, broker, directory, choices)
        stack.callback(chaos.close)
        for victim in victims_of(kills, choices):
            chaos.strike(victim)
        load.finish()
        answer = chaos.finish()
        log = directory / "client.log"
        verdict = compare(read(broker.url, SOURCE, log), read(broker.url, TARGET, log))
    return {
        "kills": dict(chaos.faults), "sent": load.sent, **asdict(verdict), "query_restarts": len(answer["errors"]),
        "passed": verdict.passed and verdict.wanted >= load.sent,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=8)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-spark-kills-") as directory:
        verdict = run(arguments.kills, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
