"""A run of clients that nobody ran, without a fault, into which faults are planted one by one.

Written:   as the logs and the archive that an audit takes. `expected` is what it must find, message by message.
"""

from __future__ import annotations

import json
import zlib
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

TOPIC = "persistent://public/default/orders"
PRODUCERS = ("p-0", "p-1")
SUBSCRIPTIONS = ("billing", "shipping")
BEGIN_US = 1_700_000_000_000_000
ACK_US = 4_000
DELIVERY_US = 9_000
STORED_SCHEMA = pa.schema(
    {
        "key": pa.binary(),
        "value": pa.binary(),
        "topic": pa.string(),
        "partition": pa.int32(),
        "message_id": pa.string(),
        "index": pa.int64(),
        "publish_time": pa.timestamp("us", tz="UTC"),
        "producer": pa.string(),
        "sequence_id": pa.int64(),
    }
)

Id = tuple[str, int]
"""Producer and sequence."""


@dataclass
class World:
    """Each producer writes to a partition of its own; ten messages are a batch."""

    messages: int = 200
    sent: dict[Id, dict[str, Any]] = field(default_factory=dict)
    answered: dict[Id, dict[str, Any]] = field(default_factory=dict)
    stored: list[dict[str, Any]] = field(default_factory=list)
    received: list[dict[str, Any]] = field(default_factory=list)
    expected: dict[Id, set[str]] = field(default_factory=dict)
    """Faults by message; those that are not here have none."""

    def __post_init__(self) -> None:
        for partition, producer in enumerate(PRODUCERS):
            for sequence in range(1, self.messages + 1):
                self._run(producer, partition, sequence)

    def plant(self, producer: str, sequence: int, *faults: str) -> Id:
        self.expected.setdefault((producer, sequence), set()).update(faults)
        return producer, sequence

    def stored_of(self, of: Id) -> dict[str, Any]:
        return next(row for row in self.stored if (row["producer"], row["sequence_id"]) == of)

    def received_of(self, of: Id, subscription: str = SUBSCRIPTIONS[0]) -> dict[str, Any]:
        return next(
            line
            for line in self.received
            if (line["producer"], line["sequence"]) == of and line["subscription"] == subscription
        )

    def forget_received(self, of: Id) -> None:
        self.received = [line for line in self.received if (line["producer"], line["sequence"]) != of]

    def swap(self, rows: list[dict[str, Any]], one: dict[str, Any], other: dict[str, Any], *names: str) -> None:
        """Places, so that the earlier message comes behind the later one."""
        assert one in rows
        assert other in rows
        for name in names:
            one[name], other[name] = other[name], one[name]

    def write(self, directory: Path) -> tuple[str, str]:
        """Logs and archive."""
        logs, archive = directory / "logs", directory / "archive"
        logs.mkdir()
        archive.mkdir()
        _write_lines(logs / "producers.jsonl", [*self.sent.values(), *self.answered.values()])
        _write_lines(logs / "consumers.jsonl", self.received)
        pq.write_table(pa.Table.from_pylist(self.stored, schema=STORED_SCHEMA), archive / "part-0.parquet")
        return str(logs), str(archive)

    def _run(self, producer: str, partition: int, sequence: int) -> None:
        number = sequence - 1
        value = f"{producer} {sequence}".encode()
        message_id = f"{10 + partition}:{number // 10}:{partition}:{number % 10}"
        sent_us = BEGIN_US + number * 20_000
        line = {"topic": TOPIC, "client": producer, "producer": producer, "sequence": sequence, "key": f"k{number % 7}"}
        of = (producer, sequence)
        self.sent[of] = {**line, "event": "sent", "n": number, "time": sent_us, "crc32": zlib.crc32(value)}
        answer = {"event": "answered", "time": sent_us + ACK_US, "outcome": "ok", "message_id": message_id}
        self.answered[of] = {**line, **answer, "n": self.messages + number}
        self.stored.append(
            {
                "key": line["key"].encode(),
                "value": value,
                "topic": f"{TOPIC}-partition-{partition}",
                "partition": partition,
                "message_id": message_id,
                "index": number,
                "publish_time": datetime.fromtimestamp(0, UTC) + timedelta(microseconds=sent_us),
                "producer": producer,
                "sequence_id": sequence,
            }
        )
        for subscription in SUBSCRIPTIONS:
            self.received.append(
                {
                    **line,
                    "event": "received",
                    "topic": f"{TOPIC}-partition-{partition}",
                    "client": f"{subscription}-1",
                    "subscription": subscription,
                    "n": number,
                    "time": sent_us + DELIVERY_US,
                    "message_id": message_id,
                    "published": sent_us,
                    "redelivery_count": 0,
                    "crc32": zlib.crc32(value),
                }
            )


def _write_lines(path: Path, lines: list[dict[str, Any]]) -> None:
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
