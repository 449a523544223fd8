"""The official client of a cluster in a process that stays: requests are lines of JSON (worker_process.py).

open        producers on new topics, 32 at a time; all of them stay open
publish     paced messages to the first COUNT of them in turn: the time from each `send_async` to its acknowledgement
subscribe   a consumer on each of their topics; `unsubscribe` ends them with their subscriptions
start       paced messages to one topic, until `stop`: when each was sent, and when it was acknowledged
probe       until a publish of a new client is acknowledged: one tries every 100 ms, none waits for another
close       all producers
"""

from __future__ import annotations

import contextlib
import resource
import sys
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from statistics import quantiles
from typing import Any

import pulsar

from bench.pulsar_worker import SINGLE, SUBSCRIPTION
from bench.worker_process import serve_requests
from magnetar.errors import ProcessFailedError
from workloads.pulsar_load import connect

AT_ONCE = 32
PAYLOAD = b"x" * 1024
PROBE_EVERY_S = 0.1
PROBES_MAX = 600
ACKNOWLEDGED_S_MAX = 60.0

Times = list[tuple[float, float]]
"""When each message was sent, and when it was acknowledged, by the clock that all processes share."""


class Paced:
    """Sends to producers in turn at a rate, and notes when each message was sent and acknowledged."""

    def __init__(self, producers: Sequence[Any], rate: int) -> None:
        self._producers = producers
        self._step_s = 1 / rate
        self.sent_at: list[float] = []
        self.acknowledged_at: dict[int, float] = {}
        self.failures: list[str] = []

    def run(self, is_over: Callable[[], bool]) -> None:
        for number in self._due(is_over):
            self.sent_at.append(time.monotonic())
            self._producers[number % len(self._producers)].send_async(PAYLOAD, self._callback_for(number))

    def _due(self, is_over: Callable[[], bool]) -> Iterator[int]:
        began, number = time.monotonic(), 0
        while not is_over():
            ahead = began + number * self._step_s - time.monotonic()
            if ahead > 0:
                time.sleep(ahead)
            yield number
            number += 1

    def _callback_for(self, number: int) -> Callable[[Any, Any], None]:
        def on_answer(result: Any, _message_id: Any) -> None:
            self.acknowledged_at[number] = time.monotonic()
            if result != pulsar.Result.Ok:
                self.failures.append(f"message {number} was answered {result}")

        return on_answer

    def times(self) -> Times:
        """Waits until all is acknowledged."""
        deadline = time.monotonic() + ACKNOWLEDGED_S_MAX
        while len(self.acknowledged_at) < len(self.sent_at) and time.monotonic() < deadline:
            time.sleep(0.01)
        missing = len(self.sent_at) - len(self.acknowledged_at)
        if missing or self.failures:
            raise ProcessFailedError(f"{missing} messages were not answered; {'; '.join(self.failures[:3])}")
        return [(sent, self.acknowledged_at[number]) for number, sent in enumerate(self.sent_at)]


class Worker:
    def __init__(self, url: str, log: Path) -> None:
        self._client = connect(url, log)
        self._log = log
        self._producers: list[Any] = []
        self._consumers: list[Any] = []
        self._running: tuple[Paced, threading.Event, threading.Thread] | None = None

    def open(self, prefix: str, first: int, count: int) -> dict[str, float]:
        used, began = cpu_s(), time.monotonic()
        with ThreadPoolExecutor(AT_ONCE) as pool:
            self._producers += pool.map(self._producer, [f"{prefix}-{first + number}" for number in range(count)])
        took = time.monotonic() - began
        return {"seconds": took, "cpu": (cpu_s() - used) / took}

    def _producer(self, topic: str) -> Any:
        return self._client.create_producer(topic, **SINGLE)

    def publish(self, topics: int, rate: int, seconds: float) -> dict[str, float]:
        used, began = cpu_s(), time.monotonic()
        paced = Paced(self._producers[:topics], rate)
        paced.run(lambda: time.monotonic() > began + seconds)
        taken = [(acknowledged - sent) * 1000 for sent, acknowledged in paced.times()]
        cuts = quantiles(taken, n=100)
        return {"p50_ms": cuts[49], "p99_ms": cuts[98], "cpu": (cpu_s() - used) / (time.monotonic() - began)}

    def subscribe(self) -> int:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            self._consumers += pool.map(self._consumer, [producer.topic() for producer in self._producers])
        return len(self._consumers)

    def _consumer(self, topic: str) -> Any:
        return self._client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=1)

    def unsubscribe(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: each.unsubscribe(), self._consumers))
        self._consumers = []

    def start(self, topic: str, rate: int) -> None:
        producer = self._client.create_producer(topic, send_timeout_millis=0, **SINGLE)
        self._producers.append(producer)
        paced, ends = Paced([producer], rate), threading.Event()
        thread = threading.Thread(target=paced.run, args=(ends.is_set,), daemon=True)
        thread.start()
        self._running = paced, ends, thread

    def stop(self) -> Times:
        assert self._running is not None, "nothing was started"
        (paced, ends, thread), self._running = self._running, None
        ends.set()
        thread.join(ACKNOWLEDGED_S_MAX)
        return paced.times()

    def probe(self, url: str, topic: str) -> float:
        """The time of the first acknowledgement."""
        acknowledged: list[float] = []
        threads: list[threading.Thread] = []
        while not acknowledged:
            if len(threads) == PROBES_MAX:
                raise ProcessFailedError(f"{PROBES_MAX} clients could not publish to {topic}")
            threads.append(threading.Thread(target=_try, args=(url, topic, self._log, acknowledged)))
            threads[-1].start()
            time.sleep(PROBE_EVERY_S)
        for thread in threads:
            thread.join()
        return min(acknowledged)

    def close(self) -> None:
        with ThreadPoolExecutor(AT_ONCE) as pool:
            list(pool.map(lambda each: each.close(), self._producers))
        self._producers = []


def _try(url: str, topic: str, log: Path, acknowledged: list[float]) -> None:
    client = connect(url, log)
    with contextlib.suppress(pulsar.PulsarException):  # Another one tries.
        client.create_producer(topic, **SINGLE).send(PAYLOAD)
        acknowledged.append(time.monotonic())
    client.close()


def cpu_s() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def main() -> None:
    worker = Worker(sys.argv[1], Path(sys.argv[2]))
    names = ("open", "publish", "subscribe", "unsubscribe", "start", "stop", "probe", "close")
    serve_requests({name: getattr(worker, name) for name in names})


if __name__ == "__main__":
    main()
