"""The consumer of the demonstration: receives and acknowledges on its own thread, whatever happens to the server."""

from __future__ import annotations

import threading
from typing import Any, Final

import pulsar

from magnetar.testing.processes.child import wait_for
from workloads.pulsar_load import END_TIMEOUT_S, number_of

_POLL_MS: Final = 500
_PAUSE_S: Final = 0.05


class DemoConsumer:
    """Begins with the first message; runs until `finish` or `end`."""

    def __init__(self, client: Any, topic: str, subscription: str) -> None:
        self.received: set[int] = set()
        """Numbers of the messages; one that came again counts once."""
        self._consumer = client.subscribe(topic, subscription, initial_position=pulsar.InitialPosition.Earliest)
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._receive_all, daemon=True)
        self._thread.start()

    def finish(self, messages: int) -> None:
        """Returns when it has received this number of messages. TimeoutError."""
        what = f"the consumer's receipt of {messages:,} messages"
        try:
            wait_for(lambda: len(self.received) >= messages, what=what, timeout=END_TIMEOUT_S)
        finally:
            self.end()

    def end(self) -> None:
        self._ends.set()
        self._thread.join(END_TIMEOUT_S)

    def _receive_all(self) -> None:
        while not self._ends.is_set():
            try:
                message = self._consumer.receive(_POLL_MS)
                self._consumer.acknowledge(message)
            except pulsar.PulsarException:  # Nothing came, or the server is away just now.
                self._ends.wait(_PAUSE_S)
                continue
            self.received.add(number_of(message.data()))
