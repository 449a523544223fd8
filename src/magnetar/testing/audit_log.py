"""Logs of real clients that `magnetar pipeline audit` takes: JSON lines of what was sent, answered and received.

    log = AuditLog(Path("producer.jsonl"), client="billing-1")
    producer = audit_clients.PulsarProducer(client.create_producer("orders"), log)    # then as always

Order:     A message is in the log before the client has it, so that a kill never makes it unknown. A line is one write.
Format:    Times are microseconds since 1970: the wall clock when the log was opened, then a clock that is never set
           back. The times of one log can be subtracted from each other; between machines they are as good as their
           clocks.
Threads:   Clients call back on threads of their own; a lock keeps lines whole.
Read next: docs/audit.md (every field), audit_clients.py (wrappers of the official clients)
"""

from __future__ import annotations

import json
import threading
import time
import zlib
from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any, Final, Self, TextIO

HEADER: Final = "magnetar-audit"
"""Property or header of a message: `producer:sequence`, for clients that do not tell a consumer the sequence."""
OK: Final = "ok"


def steady_clock() -> Callable[[], int]:
    """Microseconds since 1970 that never go back."""
    offset_us = time.time_ns() // 1000 - time.monotonic_ns() // 1000
    return lambda: offset_us + time.monotonic_ns() // 1000


def mark_of(producer: str, sequence: int) -> str:
    return f"{producer}:{sequence}"


def parse_mark(mark: str | bytes | None) -> tuple[str | None, int | None]:
    """Producer and sequence of what `mark_of` made; of anything else, nothing."""
    if mark is None:
        return None, None
    text = mark.decode("utf-8", "replace") if isinstance(mark, bytes) else mark
    producer, _, sequence = text.rpartition(":")
    return (producer, int(sequence)) if producer and sequence.isascii() and sequence.isdigit() else (None, None)


class AuditLog:
    """Appends to its file. `client` names who writes; several clients may share a log."""

    def __init__(self, path: Path, client: str, clock: Callable[[], int] | None = None) -> None:
        self._client = client
        self._clock = clock or steady_clock()
        self._lock = threading.Lock()
        self._lines = 0
        self._file: TextIO | None = path.open("a", encoding="utf-8", buffering=1)  # Each line is written at its end.

    def sent(
        self, topic: str, producer: str, sequence: int, *, key: str | None = None, value: bytes | None = None
    ) -> None:
        """Call it before the client gets the message."""
        self._write("sent", topic=topic, producer=producer, sequence=sequence, key=key, crc32=_crc32(value))

    def answered(
        self,
        topic: str,
        producer: str,
        sequence: int,
        *,
        outcome: str = OK,
        message_id: str | None = None,
        error: str | None = None,
    ) -> None:
        """`ok` is an acknowledgement; any other outcome leaves the message in doubt."""
        place = {"outcome": outcome, "message_id": message_id, "error": error}
        self._write("answered", topic=topic, producer=producer, sequence=sequence, **place)

    def received(
        self,
        topic: str,
        subscription: str,
        message_id: str,
        *,
        producer: str | None = None,
        sequence: int | None = None,
        key: str | None = None,
        value: bytes | None = None,
        published_ms: int | None = None,
        redelivery_count: int | None = None,
    ) -> None:
        """Without a sequence the audit finds the message by its id."""
        self._write(
            "received",
            topic=topic,
            subscription=subscription,
            message_id=message_id,
            producer=producer,
            sequence=sequence,
            key=key,
            crc32=_crc32(value),
            published=published_ms * 1000 if published_ms else None,
            redelivery_count=redelivery_count,
        )

    def close(self) -> None:
        """Ends the log. What comes later is not logged: callbacks may still be in progress."""
        with self._lock:
            if self._file is not None:
                self._file.close()
            self._file = None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, _type: type[BaseException] | None, _error: BaseException | None, _trace: TracebackType | None
    ) -> None:
        self.close()

    def _write(self, event: str, **fields: Any) -> None:
        known = {name: value for name, value in fields.items() if value is not None}
        with self._lock:
            if self._file is None:
                return
            line = {"event": event, "client": self._client, "n": self._lines, "time": self._clock(), **known}
            self._file.write(json.dumps(line, separators=(",", ":")) + "\n")
            self._lines += 1


def _crc32(value: bytes | None) -> int | None:
    return None if value is None else zlib.crc32(value)
