"""What the official client finds in a topic, and what is asked of the admin interface before."""

from __future__ import annotations

import json
import urllib.request
from dataclasses import dataclass
from typing import Any

import pulsar

from interop.spark.messages import each_message
from magnetar.testing.processes.servers import StandaloneProcess


@dataclass(frozen=True)
class Found:
    value: bytes
    key: str
    partition: int
    event_ms: int
    properties: dict[str, str]


def read_topic(client: pulsar.Client, topic: str) -> list[Found]:
    """All that is there, partition by partition; each partition in its order."""
    return [
        Found(
            message.data(),
            message.partition_key(),
            message.message_id().partition(),
            message.event_timestamp(),
            message.properties(),
        )
        for partition in client.get_topic_partitions(topic)
        for message in each_message(client, partition)
    ]


def make_partitioned(standalone: StandaloneProcess, topic: str, partitions: int) -> None:
    post(standalone, f"/admin/v2/persistent/public/default/{topic}/partitions", partitions, method="PUT")


def post(standalone: StandaloneProcess, path: str, body: Any, method: str = "POST") -> None:
    request = urllib.request.Request(
        f"{standalone.admin_url}{path}",
        json.dumps(body).encode(),
        {"Content-Type": "application/json"},
        method=method,
    )
    urllib.request.urlopen(request, timeout=30).close()
