"""Logs: the standard library's logging with fields, as lines for people or as one JSON object a line.

Format:    `log = logging.getLogger(__name__)`, then `log.info("ledger fenced", extra={"ledger": 5})`. The message is a
           constant, values are fields. The handler is on logging's own root; there is no other global.
Limits:    a line is formatted by the caller and put in a bounded queue. A stuck terminal or pipe never stops the event
           loop: when the queue is full, lines are dropped, counted, and the count is logged.
Threads:   a thread writes the lines. `logging.shutdown`, which the interpreter runs at exit, waits a moment for the
           queue. A killed process loses the lines of its last moments; nothing durable may depend on the log.
Read next: docs/observability.md
"""

from __future__ import annotations

import json
import logging
import math
import queue
import threading
import time
from collections.abc import Mapping
from typing import Final, Literal, TextIO, TypeAlias

LogFormat: TypeAlias = Literal["auto", "human", "json"]

QUEUE_LINES_MAX: Final = 10_000  # About a second of a very talkative process, a few MiB.
FLUSH_SECONDS_MAX: Final = 2.0  # How long the end of the process may wait for a stuck terminal or pipe.

_OWN_ATTRIBUTES: Final = frozenset(logging.makeLogRecord({}).__dict__) | {"message", "asctime", "taskName"}
_OWN_KEYS: Final = frozenset({"ts", "level", "logger", "message", "exception"})
_CONTROL: Final = {number: f"\\x{number:02x}" for number in (*range(32), *range(127, 160))} | {
    9: "\\t",
    10: "\\n",
    13: "\\r",
}


def setup_logging(level: str, log_format: LogFormat, stream: TextIO) -> logging.Handler:
    """Sends the process's log to the stream. A second call replaces the first."""
    root = logging.getLogger()
    for handler in [one for one in root.handlers if isinstance(one, QueuedStreamHandler)]:
        root.removeHandler(handler)
        handler.close()
    handler = QueuedStreamHandler(stream)
    for_people = log_format == "human" or (log_format == "auto" and stream.isatty())
    handler.setFormatter(HumanFormatter() if for_people else JsonFormatter())
    handler.setLevel(level)  # A library's logger may have a level of its own, which the root's does not bound.
    root.addHandler(handler)
    root.setLevel(level)
    return handler


class JsonFormatter(logging.Formatter):
    """`{"ts": "2026-01-31T12:00:00.000Z", "level": …, "logger": …, "message": …, fields…, "exception": …}`"""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, object] = {
            "ts": _utc(record.created),
            "level": record.levelname,
            "logger": record.name,
            "message": record.getMessage(),
        }
        for key, value in _fields(record).items():
            line[f"{key}_" if key in _OWN_KEYS else key] = _plain(value)
        if trace := _trace(self, record):
            line["exception"] = trace
        return json.dumps(line, default=str)


class HumanFormatter(logging.Formatter):
    """`12:00:00.000 INFO    magnetar.bookie  ledger fenced  ledger=5`, and below it the trace of an exception."""

    def format(self, record: logging.LogRecord) -> str:
        clock = time.strftime("%H:%M:%S", time.localtime(record.created))
        head = f"{clock}.{int(record.created * 1_000) % 1_000:03d} {record.levelname:<7} {record.name}"
        message = record.getMessage().translate(_CONTROL)  # One record stays one line, whatever bytes a peer has sent.
        fields = [f"{key}={_readable(value)}" for key, value in _fields(record).items()]
        line = "  ".join([head, message, *([" ".join(fields)] if fields else [])])
        trace = _trace(self, record)
        return f"{line}\n{trace}" if trace else line


def _fields(record: logging.LogRecord) -> dict[str, object]:
    return {key: value for key, value in record.__dict__.items() if key not in _OWN_ATTRIBUTES}


def _trace(formatter: logging.Formatter, record: logging.LogRecord) -> str:
    parts = []
    if record.exc_info and record.exc_info[0] is not None:
        parts.append(formatter.formatException(record.exc_info))
    if record.stack_info:
        parts.append(formatter.formatStack(record.stack_info))
    return "\n".join(parts)


def _utc(created: float) -> str:
    milliseconds = int(created * 1_000)
    seconds = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(milliseconds // 1_000))
    return f"{seconds}.{milliseconds % 1_000:03d}Z"


def _plain(value: object) -> object:
    """Returns text for values that JSON cannot hold; that is never an error, for a log line must not fail its
    caller."""
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): _plain(inner) for key, inner in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(inner) for inner in value]
    return value


def _readable(value: object) -> str:
    text = str(value)
    is_bare = text and text.isprintable() and not any(sign in text for sign in ' "=')
    return text if is_bare else json.dumps(text, ensure_ascii=False).translate(_CONTROL)


class QueuedStreamHandler(logging.Handler):
    """Writes lines on its own thread, which the first line starts and `close` ends."""

    def __init__(self, stream: TextIO, queue_lines_max: int = QUEUE_LINES_MAX) -> None:
        super().__init__()
        self.dropped_lines = 0
        self.failed_writes = 0
        self._stream = stream
        self._lines: queue.Queue[str | threading.Event | None] = queue.Queue(queue_lines_max)
        self._thread: threading.Thread | None = None
        self._is_closed = False

    def emit(self, record: logging.LogRecord) -> None:  # logging calls this with the handler's lock held.
        try:
            line = self.format(record)
        except Exception:
            self.handleError(record)
            return
        if self._is_closed:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name="log", daemon=True)
            self._thread.start()
        try:
            self._lines.put_nowait(line)
        except queue.Full:
            self.dropped_lines += 1

    def flush(self) -> None:
        """Waits, but not forever, until everything logged so far is written."""
        if self._thread is None or self._is_closed:
            return
        written = threading.Event()
        deadline = time.monotonic() + FLUSH_SECONDS_MAX
        try:
            self._lines.put(written, timeout=FLUSH_SECONDS_MAX)
        except queue.Full:
            return
        written.wait(max(0.0, deadline - time.monotonic()))

    def close(self) -> None:
        self.flush()
        self._is_closed = True
        if self._thread is not None:
            try:
                self._lines.put_nowait(None)
                self._thread.join(FLUSH_SECONDS_MAX)
            except queue.Full:
                pass  # The stream is stuck; the thread is a daemon and ends with the process.
        super().close()

    def _run(self) -> None:
        reported = 0
        while (line := self._lines.get()) is not None:
            if isinstance(line, threading.Event):
                self._write("")
                line.set()
                continue
            self._write(line + "\n")
            if self.dropped_lines != reported:
                dropped, reported = self.dropped_lines - reported, self.dropped_lines
                self._write(self._notice(dropped) + "\n")

    def _write(self, text: str) -> None:
        try:
            try:
                self._stream.write(text)
            except UnicodeEncodeError:  # The terminal's encoding lacks a character.
                self._stream.write(text.encode("ascii", "backslashreplace").decode("ascii"))
            if not text or self._lines.empty():
                self._stream.flush()
        except (OSError, ValueError):
            self.failed_writes += 1  # The stream is closed or has no reader: no place is left for a report.

    def _notice(self, dropped: int) -> str:
        text = "log lines were dropped: the stream they are written to is too slow"
        record = logging.LogRecord(__name__, logging.WARNING, __file__, 0, text, None, None)
        record.dropped_lines = dropped
        return self.format(record)
