"""A bookie's metrics, and the two pages for scrapers and for supervisors of processes: `/metrics` and `/health`.

Limits:    one request per connection. A request that is long, slow or invalid gets an error and the connection is
           closed; more than `CONNECTIONS_MAX` at a time are closed unanswered.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

from magnetar.runtime.descriptors import takes_from_reserve
from magnetar.runtime.gather import cancel_all
from magnetar.runtime.metrics import CONTENT_TYPE, Health, Metrics
from magnetar.runtime.web_guard import WebGuard

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie


def observe_bookie(metrics: Metrics, bookie: Bookie) -> None:
    """Registers the metrics. The registry and the bookie end together, so nothing is unregistered."""
    for name, doc, read in _counters(bookie):
        metrics.counter_callback(f"magnetar_bookie_{name}_total", doc, read)
    for name, doc, read in _gauges(bookie):
        metrics.gauge_callback(f"magnetar_bookie_{name}", doc, read)
    bookie.disk_watch.observe(metrics)
    bookie.collector.observe(metrics)


Reading = tuple[str, str, Callable[[], float]]


def _counters(bookie: Bookie) -> list[Reading]:
    counters, adds, reads, receiving = bookie.counters, bookie.adds, bookie.reads, bookie.receiving
    return [
        ("connections", "Connections accepted.", lambda: counters.opened),
        ("connections_turned_away", "Connections without a file descriptor for them.", lambda: counters.turned_away),
        ("received_bytes", "Bytes received from clients.", lambda: counters.received_bytes),
        ("sent_bytes", "Bytes sent to clients.", lambda: counters.sent_bytes),
        ("refused_requests", "Requests answered as malformed or unsupported.", lambda: counters.refused),
        ("broken_connections", "Connections closed because the client broke the protocol.", lambda: counters.broken),
        ("unfinished_frames", "Connections closed because a frame did not continue.", lambda: receiving.timed_out),
        ("receive_held", "Times that a connection was held for lack of receive memory.", lambda: receiving.held),
        ("dropped_answers", "Answers dropped because the client did not read them.", lambda: counters.dropped_answers),
        ("adds", "Entries taken.", lambda: adds.added),
        ("refused_adds", "Entries refused, for any reason.", lambda: sum(adds.refused.values())),
        ("adds_held", "Times that adds in progress reached their limit.", lambda: adds.busy_gate.shut_times),
        ("writers_held", "Times that one writer's adds reached their limit.", lambda: adds.quotas.held),
        ("journal_held", "Times that the journal's queue was full.", lambda: adds.journal_gate.shut_times),
        ("cache_held", "Times that both write caches were full.", lambda: adds.cache_gate.shut_times),
        ("reads", "Entries found and sent.", lambda: reads.served),
        ("refused_reads", "Reads refused: their reader had too many, or too many waited.", lambda: reads.refused),
        ("failed_reads", "Reads that ended in an error of disk or index.", lambda: reads.failed),
        ("reads_held", "Times that reads in progress reached their limit.", lambda: reads.busy_gate.shut_times),
        ("fences", "Ledgers fenced.", lambda: bookie.fencing.fenced),
        ("evicted_ledgers", "Idle ledgers evicted from memory.", lambda: bookie.table.evictions),
    ]


def _gauges(bookie: Bookie) -> list[Reading]:
    counters = bookie.counters
    return [
        ("connections_open", "Connections open now.", lambda: counters.opened - counters.closed),
        ("receive_bytes", "Memory of received bytes that are not handled yet.", lambda: bookie.receiving.kept_bytes),
        ("adds_in_progress", "Adds taken and not answered yet.", lambda: bookie.adds.in_progress),
        ("reads_in_progress", "Reads taken and not answered yet.", lambda: bookie.reads.in_progress),
        ("long_polls_waiting", "Readers that wait for a LAC to move.", lambda: bookie.polls.waiting),
        ("ledgers_in_memory", "Ledgers with recent requests.", lambda: len(bookie.table)),
        ("read_only", "1 if the bookie takes no entries.", lambda: float(bookie.switch.is_read_only)),
    ]


CONNECTIONS_MAX: Final = 64
_REQUEST_BYTES_MAX: Final = 8 * 1024
_REQUEST_SECONDS_MAX: Final = 5.0


class _Answer(NamedTuple):
    status: str
    content_type: str
    body: bytes


class ObservationServer:
    def __init__(self, metrics: Metrics, health: Callable[[], Health], guard: WebGuard) -> None:
        self._metrics = metrics
        self._health = health
        self._guard = guard
        self._server: asyncio.Server | None = None
        self._open: dict[asyncio.Task[None], None] = {}

    async def start(self, host: str, port: int) -> int:
        """Returns the port."""
        self._server = await asyncio.start_server(self._accept, host, port, limit=_REQUEST_BYTES_MAX)
        return int(self._server.sockets[0].getsockname()[1])

    async def aclose(self) -> None:
        if self._server is not None:
            self._server.close()
        await cancel_all(list(self._open))

    async def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        if len(self._open) >= CONNECTIONS_MAX or takes_from_reserve(writer.transport):
            writer.transport.abort()
            return
        self._open[task] = None
        try:
            async with asyncio.timeout(_REQUEST_SECONDS_MAX):
                await self._serve(reader, writer)
        except (TimeoutError, OSError, asyncio.LimitOverrunError, asyncio.IncompleteReadError):
            writer.transport.abort()
        finally:
            del self._open[task]
            writer.close()
            with contextlib.suppress(OSError):
                await writer.wait_closed()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        head = await reader.readuntil(b"\r\n\r\n")
        status, content_type, body = self._answer(*_parsed(head))
        writer.write(
            f"HTTP/1.1 {status}\r\nContent-Type: {content_type}\r\nContent-Length: {len(body)}\r\n"
            "Connection: close\r\n\r\n".encode()
            + body
        )
        await writer.drain()

    def _answer(self, request: list[bytes], headers: list[tuple[bytes, bytes]]) -> _Answer:
        complaint = self._guard.complaint(request[0].decode("latin-1"), headers)
        if complaint is not None:
            return _Answer("403 Forbidden", "text/plain", complaint.encode() + b"\n")
        match request:
            case [b"GET", b"/metrics", _]:
                return _Answer("200 OK", CONTENT_TYPE, self._metrics.render())
            case [b"GET", b"/health", _]:
                healthy, detail = self._health()
                status = "200 OK" if healthy else "503 Service Unavailable"
                return _Answer(status, "application/json", json.dumps({"healthy": healthy, **detail}).encode() + b"\n")
            case [b"GET", _, _]:
                return _Answer("404 Not Found", "text/plain", b"there are /metrics and /health\n")
            case [_, _, _]:
                return _Answer("405 Method Not Allowed", "text/plain", b"only GET\n")
        return _Answer("400 Bad Request", "text/plain", b"not an HTTP request\n")


def _parsed(head: bytes) -> tuple[list[bytes], list[tuple[bytes, bytes]]]:
    """Returns the words of the request line, and the headers with their names in lower case."""
    request, *lines = head.split(b"\r\n")
    named = (line.partition(b":") for line in lines)
    return request.split(b" "), [(name.strip().lower(), value.strip()) for name, separator, value in named if separator]
