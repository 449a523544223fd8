"""Metrics: a registry that a component is given, never a global; what the page `/health` reports; what a process uses.

Format:    `magnetar_<subsystem>_<what>`, in base units (`_seconds`, `_bytes`); a counter, and nothing else, ends in
           `_total`.
Invariant: components of one process share one registry. A second request for a metric gets the same object, if the
           definition is equal; a different one under the same name is a bug, and an assertion.
Limits:    a metric object costs a lock and a good part of a microsecond per call, so nothing is called per entry. A
           component counts in plain ints and publishes them by callback (`counter_callback`, `gauge_callback`: read
           at each scrape), or adds what it has gathered to histograms per batch. Memory of the process is known on
           Linux only; elsewhere it is 0.
Threads:   callbacks run in `render`, which is called on the event loop, so they see the component's state at rest.
Read next: docs/observability.md; bookie/observation.py and admin/server.py, which serve the pages
"""

from __future__ import annotations

import contextlib
import os
import re
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Final, NamedTuple, TypeVar, cast

from prometheus_client import CollectorRegistry, Counter, Histogram
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector


class Health(NamedTuple):
    is_healthy: bool
    detail: dict[str, object]


CONTENT_TYPE: Final = "text/plain; version=0.0.4; charset=utf-8"
LATENCY_BUCKETS_S: Final = (0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0, 10.0)

_NAME: Final = re.compile(r"magnetar_[a-z][a-z0-9]*(_[a-z0-9]+)+")

M = TypeVar("M", bound=Collector)


@dataclass(frozen=True, slots=True)
class _Definition:
    kind: str
    doc: str
    labels: tuple[str, ...]
    buckets: tuple[float, ...] = ()


class Metrics:
    def __init__(self) -> None:
        self._registry = CollectorRegistry(auto_describe=False)
        self._definitions: dict[str, _Definition] = {}
        self._metrics: dict[str, Collector] = {}

    def counter(self, name: str, doc: str, labels: tuple[str, ...] = ()) -> Counter:
        return self._get(
            name, _Definition("counter", doc, labels), lambda: Counter(name, doc, labels, registry=self._registry)
        )

    def histogram(
        self, name: str, doc: str, labels: tuple[str, ...] = (), buckets: tuple[float, ...] = LATENCY_BUCKETS_S
    ) -> Histogram:
        return self._get(
            name,
            _Definition("histogram", doc, labels, buckets),
            lambda: Histogram(name, doc, labels, buckets=buckets, registry=self._registry),
        )

    def counter_callback(
        self, name: str, doc: str, read: Callable[[], float], labels: Mapping[str, str] | None = None
    ) -> Callable[[], None]:
        """Publishes a number that only grows. The returned function ends that, when the component closes."""
        return self._callback("counter callback", name, doc, read, labels or {})

    def gauge_callback(
        self, name: str, doc: str, read: Callable[[], float], labels: Mapping[str, str] | None = None
    ) -> Callable[[], None]:
        """Publishes a number that grows and shrinks. Two callbacks with the same labels are added up."""
        return self._callback("gauge callback", name, doc, read, labels or {})

    def render(self) -> bytes:
        """Returns all metrics in Prometheus's text format; its content type is `CONTENT_TYPE`."""
        return generate_latest(_WithoutCreationTimes(self._registry))

    def _callback(
        self, kind: str, name: str, doc: str, read: Callable[[], float], labels: Mapping[str, str]
    ) -> Callable[[], None]:
        label_names = tuple(sorted(labels))
        family: type[CounterMetricFamily | GaugeMetricFamily]
        family = CounterMetricFamily if kind == "counter callback" else GaugeMetricFamily
        collector = self._get(
            name,
            _Definition(kind, doc, label_names),
            lambda: self._registered(_Callbacks(family, name, doc, label_names)),
        )
        return collector.add(tuple(labels[label] for label in label_names), read)

    def _registered(self, collector: _Callbacks) -> _Callbacks:
        self._registry.register(collector)
        return collector

    def _get(self, name: str, definition: _Definition, make: Callable[[], M]) -> M:
        known = self._definitions.get(name)
        if known is None:
            _check_name(name, definition)
            self._metrics[name] = make()
            self._definitions[name] = definition
        else:
            assert known == definition, f"metric {name} is defined twice, as {known} and as {definition}"
        return cast("M", self._metrics[name])


def _check_name(name: str, definition: _Definition) -> None:
    assert _NAME.fullmatch(name), f"metric {name!r} must be named magnetar_<subsystem>_<what>"
    is_counter = definition.kind.startswith("counter")
    assert name.endswith("_total") == is_counter, f"metric {name!r}: a counter, and only a counter, ends in _total"
    assert definition.doc, f"metric {name!r} needs a sentence of documentation"


class _Callbacks(Collector):
    """A metric whose values are read from components when it is scraped."""

    def __init__(
        self, family: type[CounterMetricFamily | GaugeMetricFamily], name: str, doc: str, labels: tuple[str, ...]
    ) -> None:
        self._family = family
        self._name = name
        self._doc = doc
        self._labels = labels
        self._readers: dict[int, tuple[tuple[str, ...], Callable[[], float]]] = {}
        self._readers_made = 0

    def add(self, label_values: tuple[str, ...], read: Callable[[], float]) -> Callable[[], None]:
        self._readers_made += 1
        key = self._readers_made
        self._readers[key] = (label_values, read)
        return lambda: self._readers.pop(key, None) and None

    def collect(self) -> Iterator[Metric]:
        sums: dict[tuple[str, ...], float] = {}
        for label_values, read in list(self._readers.values()):
            sums[label_values] = sums.get(label_values, 0.0) + read()
        family = self._family(self._name, self._doc, labels=self._labels)
        for label_values, value in sums.items():
            family.add_metric(label_values, value)
        yield family


class _WithoutCreationTimes(Collector):
    """Leaves out the `_created` series that the library adds: they are not used, and double the output."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry

    def collect(self) -> Iterable[Metric]:
        for metric in self._registry.collect():
            created = f"{metric.name}_created"
            metric.samples = [sample for sample in metric.samples if sample.name != created]
            yield metric


# --- what the process uses --------------------------------------------------------------------------------------------

_STATM: Final = Path("/proc/self/statm")
_MEGABYTE: Final = 2**20


@dataclass(frozen=True, slots=True)
class Measured:
    thread_percent: float
    """Processor time of the thread since the call before; 100 is one core."""
    memory_mb: float
    """Memory that the process has in RAM."""
    machine_mb: float
    """Memory of the machine."""


class ProcessUsage:
    """Used by one thread, which is the one that is measured."""

    def __init__(self) -> None:
        self._cpu_s = time.thread_time()
        self._at_s = time.monotonic()

    def measure(self) -> Measured:
        cpu_s, at_s = time.thread_time(), time.monotonic()
        elapsed_s = at_s - self._at_s
        percent = 100 * (cpu_s - self._cpu_s) / elapsed_s if elapsed_s > 0 else 0.0
        self._cpu_s, self._at_s = cpu_s, at_s
        resident, machine = _memory()
        return Measured(percent, resident / _MEGABYTE, machine / _MEGABYTE)


def _memory() -> tuple[int, int]:
    with contextlib.suppress(OSError, ValueError, IndexError):
        page = os.sysconf("SC_PAGE_SIZE")
        return int(_STATM.read_text().split()[1]) * page, os.sysconf("SC_PHYS_PAGES") * page
    return 0, 0
