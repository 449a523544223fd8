"""What a bookie publishes: numbers that its parts count in plain ints, read when somebody scrapes."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from magnetar.runtime.metrics import Metrics

if TYPE_CHECKING:
    from magnetar.bookie.bookie import Bookie


def observe_bookie(metrics: Metrics, bookie: Bookie) -> None:
    """The registry and the bookie end together, so nothing is taken back."""
    for name, doc, read in _counters(bookie):
        metrics.counter_callback(f"magnetar_bookie_{name}_total", doc, read)
    for name, doc, read in _gauges(bookie):
        metrics.gauge_callback(f"magnetar_bookie_{name}", doc, read)
    bookie.disk_watch.observe(metrics)
    bookie.collector.observe(metrics)


Reading = tuple[str, str, Callable[[], float]]


def _counters(bookie: Bookie) -> list[Reading]:
    counters, adds, reads = bookie.counters, bookie.adds, bookie.reads
    return [
        ("connections", "Connections accepted.", lambda: counters.opened),
        ("received_bytes", "Bytes received from clients.", lambda: counters.received_bytes),
        ("sent_bytes", "Bytes sent to clients.", lambda: counters.sent_bytes),
        ("refused_requests", "Requests answered as malformed or unsupported.", lambda: counters.refused),
        ("broken_connections", "Connections closed because the client broke the protocol.", lambda: counters.broken),
        ("dropped_answers", "Answers dropped because the client did not read them.", lambda: counters.dropped_answers),
        ("adds", "Entries taken.", lambda: adds.added),
        ("refused_adds", "Entries refused, for whatever reason.", lambda: sum(adds.refused.values())),
        ("adds_held", "Times that adds in progress reached their limit.", lambda: adds.busy_gate.shut_times),
        ("writers_held", "Times that one writer's adds reached their limit.", lambda: adds.quotas.held),
        ("journal_held", "Times that the journal's queue was full.", lambda: adds.journal_gate.shut_times),
        ("cache_held", "Times that both write caches were full.", lambda: adds.cache_gate.shut_times),
        ("reads", "Entries found and sent.", lambda: reads.served),
        ("refused_reads", "Reads refused: their reader had too many, or too many waited.", lambda: reads.refused),
        ("failed_reads", "Reads that ended in an error of disk or index.", lambda: reads.failed),
        ("reads_held", "Times that reads in progress reached their limit.", lambda: reads.busy_gate.shut_times),
        ("fences", "Ledgers fenced.", lambda: bookie.fencing.fenced),
        ("evicted_ledgers", "Idle ledgers let go from memory.", lambda: bookie.table.evictions),
    ]


def _gauges(bookie: Bookie) -> list[Reading]:
    counters = bookie.counters
    return [
        ("connections_open", "Connections open now.", lambda: counters.opened - counters.closed),
        ("adds_in_progress", "Adds taken and not answered yet.", lambda: bookie.adds.in_progress),
        ("reads_in_progress", "Reads taken and not answered yet.", lambda: bookie.reads.in_progress),
        ("long_polls_waiting", "Readers that wait for a LAC to move.", lambda: bookie.polls.waiting),
        ("ledgers_in_memory", "Ledgers that the bookie was busy with.", lambda: len(bookie.table)),
        ("read_only", "1 if the bookie takes no entries.", lambda: float(bookie.switch.is_read_only)),
    ]
