"""kill -9 of standalone under load of Kafka clients, again and again; then a verdict for every message and commit.

Every kill comes while messages of an idempotent producer are unanswered and after new acknowledgements, and while three
members of a group read and commit. Small limits make rolls of ledgers a part of the rounds. In the end
- no message has failed: a producer waits for the server;
- the log has every acknowledged message exactly once, and in order;
- the group has seen all of them, and its committed offset never lay before one whose commit was answered.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from magnetar.testing.processes.child import free_port
from magnetar.testing.processes.servers import HOST, StandaloneProcess
from workloads.kafka_load import GroupMembers, NumberedProducer, number_of, read_back, tally

SOAK_KILLS = 20
TOPIC = "killed"
RATE = 2_000
MEMBERS = 3
MOST_BETWEEN_KILLS = 1_000
SETTINGS = ("kafka.enabled=true", "kafka.group_initial_rebalance_delay_ms=0", "topic.ledger_entries_max=500",
            "topic.ledger_minutes_min=0")  # fmt: skip


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_KILLS, seed, directory)


def run(kills: int, seed: int, directory: Path) -> dict[str, Any]:
    choices = random.Random(seed)
    unanswered = forgotten = 0
    port = free_port(HOST)
    bootstrap = f"{HOST}:{port}"
    with StandaloneProcess(directory / "standalone", *SETTINGS, f"kafka.port={port}") as server:
        producer = NumberedProducer(bootstrap, TOPIC, RATE)
        producer.wait_acknowledged(1)
        members = GroupMembers(bootstrap, TOPIC, MEMBERS)
        members.wait(lambda _: bool(members.committed))  # Otherwise a kill may come before the first commit.
        for _ in range(kills):
            producer.wait_acknowledged(choices.randint(1, MOST_BETWEEN_KILLS))
            committed, pending = members.committed[0], producer.unanswered
            server.kill()
            unanswered += pending > 0
            server.start()
            forgotten += members.find_committed()[0] < committed
        producer.wait_acknowledged(1)
        producer.finish()
        wanted = set(range(producer.sent))
        members.wait(lambda seen: len(seen) >= len(wanted) and set(seen) >= wanted)
        committed = members.stop()[0]
        log = [number_of(message) for message in read_back(bootstrap, TOPIC)]
    found = tally(log, producer.acknowledged)
    return {
        "kills": kills, "kills_with_unanswered_messages": unanswered, "sent": producer.sent,
        "acknowledged": len(producer.acknowledged), "failed": len(producer.failures), "on_log": found.messages,
        "lost": found.lost, "duplicated": found.duplicated, "out_of_order": found.out_of_order,
        "seen_by_group": len(members.seen), "commits_forgotten": forgotten, "committed": committed,
        "passed": found.passed and not producer.failures and not forgotten and committed == producer.sent
        and unanswered == kills,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=5)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-kafka-kills-") as directory:
        verdict = run(arguments.kills, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
