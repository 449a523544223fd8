"""A cluster of real processes under load: brokers and bookies are killed and paused, and every message gets a verdict.

Load:      the official client sends numbered messages to several topics, with deduplication on. It knows all brokers.
Faults:    drawn from the seed, one after the other, each until the load continues: a broker or a bookie is killed, or
           stands still; a broker stands still until its session has expired; all bundles of the namespace are unloaded.
           Half of the brokers stop when their session has expired, the others get a new one and continue.
Verdict:   a reader from the beginning must see every acknowledged message of a topic once, in order, byte for byte.
           `longest_wait_s` is the longest time between two acknowledgements of one topic.
"""

from __future__ import annotations

import argparse
import enum
import json
import random
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from magnetar.testing.processes.child import wait_for
from magnetar.testing.processes.cluster import ProcessCluster
from magnetar.testing.processes.servers import BookieProcess, BrokerProcess
from workloads.pulsar_load import NumberedLoad, connect, read_back

SOAK_SECONDS = 600.0
BROKERS, BOOKIES, TOPICS = 3, 4, 4
NAMESPACE = "public/default"
RATE, SIZE = 300, 200
SESSION_S = 3.0
BRIEFLY_S = (0.1, 1.0)
BEYOND_THE_SESSION_S = (SESSION_S * 1.5, SESSION_S * 2.5)
SETTLE_S = (0.5, 3.0)
RECOVERY_TIMEOUT_S = 90.0
PASSING = (409, 503)
BOOKIE_SETTINGS = (f"metadata.session_timeout_ms={SESSION_S * 1000:.0f}",)
BROKER_SETTINGS = (
    *BOOKIE_SETTINGS,
    "broker.deduplication=true",
    "broker.deduplication_snapshot_entries=100",
    "topic.ledger_entries_max=500",
    "topic.ledger_minutes_min=0",
)


class Fault(enum.Enum):
    KILL_BROKER = "broker killed"
    PAUSE_BROKER = "broker paused"
    EXPIRE_SESSION = "session expired"
    KILL_BOOKIE = "bookie killed"
    PAUSE_BOOKIE = "bookie paused"
    UNLOAD = "namespace unloaded"


class Chaos:
    def __init__(self, cluster: ProcessCluster, loads: list[NumberedLoad], seed: int) -> None:
        self.faults: Counter[str] = Counter()
        self._cluster = cluster
        self._loads = loads
        self._random = random.Random(seed)
        self._do: dict[Fault, Callable[[], None]] = {
            Fault.KILL_BROKER: lambda: self._kill(self._broker()),
            Fault.PAUSE_BROKER: lambda: self._pause(self._broker(), BRIEFLY_S),
            Fault.EXPIRE_SESSION: lambda: self._pause(self._broker(), BEYOND_THE_SESSION_S),
            Fault.KILL_BOOKIE: lambda: self._kill(self._random.choice(self._cluster.bookies)),
            Fault.PAUSE_BOOKIE: lambda: self._pause(self._random.choice(self._cluster.bookies), BRIEFLY_S),
            Fault.UNLOAD: self._unload,
        }

    def run(self, seconds: float) -> None:
        """TimeoutError when the load does not continue after a fault."""
        ends_at = time.monotonic() + seconds
        while time.monotonic() < ends_at or not self.faults:
            for fault in self._random.sample(list(Fault), len(Fault)):
                self._do[fault]()
                self.faults[fault.value] += 1
                self._wait_progress(fault.value)
                self._sleep(SETTLE_S)
                if time.monotonic() >= ends_at:
                    break

    def _broker(self) -> BrokerProcess:
        return self._random.choice(self._cluster.brokers)

    def _kill(self, server: BrokerProcess | BookieProcess) -> None:
        server.kill()
        if isinstance(server, BrokerProcess):
            self._wait_progress("broker killed, before it is started again")
        server.start()

    def _pause(self, server: BrokerProcess | BookieProcess, lasting: tuple[float, float]) -> None:
        server.pause()
        self._sleep(lasting)
        server.resume()

    def _unload(self) -> None:
        """Asks again while bundles change their owners for another reason."""
        broker = self._broker()
        request = urllib.request.Request(f"{broker.admin_url}/admin/v2/namespaces/{NAMESPACE}/unload", method="PUT")

        def is_done() -> bool:
            try:
                with urllib.request.urlopen(request, timeout=RECOVERY_TIMEOUT_S):
                    return True
            except urllib.error.HTTPError as error:
                if error.code not in PASSING:
                    raise
                return False

        wait_for(is_done, what="the unload of the namespace", timeout=RECOVERY_TIMEOUT_S, every=0.2)

    def _wait_progress(self, after: str) -> None:
        """On every topic. A broker that has stopped, because its session had expired, is started again."""
        wanted = [load.acknowledged + 1 for load in self._loads]

        def have_continued() -> bool:
            for broker in self._cluster.brokers:
                if not broker.is_running and after != "broker killed, before it is started again":
                    broker.start()
            return all(load.acknowledged >= number for load, number in zip(self._loads, wanted, strict=True))

        wait_for(have_continued, what=f"an acknowledgement on every topic after: {after}", timeout=RECOVERY_TIMEOUT_S)

    def _sleep(self, bounds: tuple[float, float]) -> None:
        """Not a wait for anything: the moment is the random input."""
        time.sleep(self._random.uniform(*bounds))


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_SECONDS, seed, directory)


def run(seconds: float, seed: int, directory: Path) -> dict[str, Any]:
    cluster = ProcessCluster(
        directory / "c",
        BOOKIES,
        BOOKIE_SETTINGS,
        brokers=BROKERS,
        broker_settings=BROKER_SETTINGS,
        settings_of={f"broker-{BROKERS}": ("broker.session_expired_policy=shutdown",)},
    )
    with cluster:
        hosts = ",".join(broker.url.removeprefix("pulsar://") for broker in cluster.brokers)
        client = connect(f"pulsar://{hosts}", directory / "client.log")
        topics = [f"persistent://{NAMESPACE}/chaos-{number}" for number in range(TOPICS)]
        for topic in topics:
            client.subscribe(topic, "keeps-all").close()  # Nothing is trimmed before it was read.
        loads = [NumberedLoad(client, topic, rate=RATE, size=SIZE) for topic in topics]
        for load in loads:
            load.wait_acknowledged(1)  # Before that, the client would begin its sequence ids anew (docs/interop.md).
        chaos = Chaos(cluster, loads, seed)
        stopped_by = _stopped_by(lambda: chaos.run(seconds))
        cluster.make_whole()
        unanswered = [_stopped_by(load.finish) for load in loads]
        tallies = [read_back(client, topic, load, SIZE) for topic, load in zip(topics, loads, strict=True)]
        client.close()
    problems = [problem for problem in (stopped_by, *unanswered) if problem is not None]
    counted = ("acknowledged", "received", "lost", "duplicated", "out_of_order", "damaged")
    return {
        **{name: sum(getattr(tally, name) for tally in tallies) for name in counted},
        "faults": dict(chaos.faults),
        "longest_wait_s": round(max(load.longest_wait_s for load in loads), 2),
        "problems": problems,
        "notes": [note for tally in tallies for note in tally.notes],
        "passed": not problems and all(tally.passed for tally in tallies),
    }


def _stopped_by(work: Callable[[], None]) -> str | None:
    """None if it was done to its end. After chaos that was stopped, what is acknowledged is checked all the same."""
    try:
        work()
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return None


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=30.0)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-cluster-chaos-") as directory:
        verdict = run(arguments.seconds, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
