"""Keyed messages into a partitioned topic by the official client, at a steady rate, until they are enough.

A message is never given up: after a lost connection the client sends it again, so the topic may hold it twice. What the
topic holds is what counts for whoever reads it.
"""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Final

from interop.spark.messages import value_of
from magnetar.errors import ProcessFailedError
from workloads.pulsar_load import connect

PAUSE_S: Final = 0.05
END_TIMEOUT_S: Final = 120.0
PENDING_MAX: Final = 2_000


class KeyedLoad:
    """Sends from the moment it is made, until `finish`."""

    def __init__(self, url: str, topic: str, log: Path, *, rate: int, size: int, keys: int) -> None:
        self.sent = 0
        self._client = connect(url, log)
        self._producer = self._client.create_producer(
            topic,
            batching_enabled=True,
            block_if_queue_full=True,
            max_pending_messages=PENDING_MAX,
            send_timeout_millis=0,  # However long it takes.
        )
        self._rate, self._size, self._keys = rate, size, keys
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._send_all, daemon=True)
        self._thread.start()

    def _send_all(self) -> None:
        """What could not be sent while the server was away is not made up for."""
        burst = max(1, round(self._rate * PAUSE_S))
        while not self._ends.wait(PAUSE_S):
            for _ in range(burst):
                key = f"key-{self.sent % self._keys}"
                self._producer.send_async(value_of(self.sent, self._size), None, partition_key=key)
                self.sent += 1

    def finish(self) -> None:
        """Nothing more is sent, and everything that was is acknowledged."""
        self._ends.set()
        self._thread.join(END_TIMEOUT_S)
        if self._thread.is_alive():
            raise ProcessFailedError("the official client did not take another message in time")
        self._producer.flush()
        self._client.close()
