"""kill -9 of standalone under load with deduplication on, again and again; then a verdict for every message.

Every kill comes while messages of the official client are unanswered and after new acknowledgements. Small limits make
ledger rolls and snapshots of the deduplication part of the rounds. In the end
- a new reader from the beginning must see every acknowledged message exactly once, in order, byte for byte;
- the durable subscription must have missed none, and no message came again whose acknowledgement had its receipt.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import tempfile
from pathlib import Path
from typing import Any

from magnetar.testing.processes.servers import StandaloneProcess
from workloads.pulsar_load import NumberedLoad, ReceiptSubscriber, connect, read_back

SOAK_KILLS = 100
TOPIC = "persistent://public/default/killed"
RATE = 1_500
SIZE = 200
MOST_BETWEEN_KILLS = 1_000
SETTINGS = (
    "broker.deduplication=true",
    "broker.deduplication_snapshot_entries=100",
    "topic.ledger_entries_max=500",
    "topic.ledger_minutes_min=0",
)


def soak(seed: int, directory: Path) -> dict[str, Any]:
    return run(SOAK_KILLS, seed, directory)


def run(kills: int, seed: int, directory: Path) -> dict[str, Any]:
    choices = random.Random(seed)
    unanswered = 0
    with StandaloneProcess(directory / "standalone", *SETTINGS) as server:
        client = connect(server.url, directory / "client.log")
        client.subscribe(TOPIC, "keeps-all").close()  # Nothing is trimmed before it was read.
        subscriber = ReceiptSubscriber(server.url, TOPIC, "durable")
        load = NumberedLoad(client, TOPIC, rate=RATE, size=SIZE)
        for _ in range(kills):
            load.wait_acknowledged(choices.randint(1, MOST_BETWEEN_KILLS))
            load.wait_unanswered()
            server.kill()
            subscriber.on_killed()
            unanswered += load.unanswered > 0
            server.start()
        load.wait_acknowledged(1)
        load.finish()
        subscriber.finish(load.sent)
        tally = read_back(client, TOPIC, load, SIZE)
        client.close()
    missed = sum(number not in subscriber.received for number in range(load.acknowledged))
    return {
        "kills": kills, "kills_with_unanswered_messages": unanswered, "acknowledged": tally.acknowledged,
        "received": tally.received, "lost": tally.lost, "duplicated": tally.duplicated,
        "out_of_order": tally.out_of_order, "damaged": tally.damaged, "missed_by_subscription": missed,
        "again": subscriber.again, "again_in_vain": len(subscriber.again_in_vain), "notes": tally.notes,
        "passed": tally.passed and not missed and not subscriber.again_in_vain and unanswered == kills,
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--seed", type=int, required=True)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="magnetar-pulsar-kills-") as directory:
        verdict = run(arguments.kills, arguments.seed, Path(directory))
    print(json.dumps({"seed": arguments.seed, **verdict}))
    sys.exit(0 if verdict["passed"] else 1)


if __name__ == "__main__":
    main()
