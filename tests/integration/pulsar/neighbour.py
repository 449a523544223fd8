"""An official client that minds its own business while others misbehave, and knows what it was promised."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pulsar

from magnetar.testing.processes.servers import StandaloneProcess
from tests.integration.pulsar.conftest import connect

WAIT_MS = 20_000
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
_NUMBERS = itertools.count(1)


def new_topic(word: str = "t") -> str:
    return f"persistent://public/default/{word}-{next(_NUMBERS)}"


def resident_bytes(pid: int) -> int:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES


class Neighbour:
    """Connected all the time. `is_served` is the question; `lost_nothing` the other one, at the end."""

    def __init__(self, process: StandaloneProcess) -> None:
        self.client = connect(process)
        self.topic = new_topic("neighbour")
        self._producer = self.client.create_producer(self.topic, send_timeout_millis=WAIT_MS)
        self._consumer = self.client.subscribe(self.topic, "s")
        self.acknowledged: list[bytes] = []

    def publish(self) -> bytes:
        text = f"n-{len(self.acknowledged)}".encode()
        self._producer.send(text)
        self.acknowledged.append(text)
        return text

    def receive(self, count: int) -> list[bytes]:
        """The next of what it published."""
        found = []
        for _ in range(count):
            message = self._consumer.receive(WAIT_MS)
            self._consumer.acknowledge(message)
            found.append(message.data())
        return found

    def is_served(self) -> bool:
        """On its old connection, and on a topic that is new."""
        sent = [self.publish()]
        received_here = self.receive(1)
        topic = new_topic("served")
        consumer = self.client.subscribe(topic, "s")
        producer = self.client.create_producer(topic)
        producer.send(b"new")
        received = consumer.receive(WAIT_MS).data()
        consumer.close()
        producer.close()
        return bool(received_here == sent and received == b"new")

    def lost_nothing(self) -> bool:
        reader = self.client.create_reader(self.topic, pulsar.MessageId.earliest)
        stored = [reader.read_next(WAIT_MS).data() for _ in self.acknowledged]
        is_all = not reader.has_message_available()
        reader.close()
        return is_all and stored == self.acknowledged

    def close(self) -> None:
        self.client.close()
