"""One measurement of a Pulsar-compatible server with the official client, in a process of its own; prints JSON.

    python -m bench.pulsar_worker publish URL TOPIC SIZE SECONDS

publish   one producer as fast as it goes, batching on with the client's own limits, until all is acknowledged. No
          callback: one for each message would make the client's interpreter lock the bottleneck
latency   1 KiB, one message in flight, no batching
e2e       RATE messages per second of 1 KiB; from the due time in the producer's process to `receive` in the consumer's.
          A late sender is not forgiven: its lateness counts
open      producers on COUNT new topics, 32 at a time
write     MEGABYTES of 1 KiB behind a subscription, for `catch-up`
catch-up  the subscription reads what was written
first     until a publish to a new topic is acknowledged, however often the client must try

The CPU that is reported is this process's own, and its children's.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pulsar

BATCHED = {"batching_enabled": True, "block_if_queue_full": True, "max_pending_messages": 10_000}
SINGLE = {"batching_enabled": False, "block_if_queue_full": True, "max_pending_messages": 10_000}
SUBSCRIPTION = "bench"
E2E_RATE = 5_000
E2E_WARM_S = 2.0
LATENCY_WARM_S = 1.0
FIRST_PATIENCE_S = 60.0
PATIENCE_MS = 30_000
_BURST = 200  # Sends between two looks at the clock.

Figures = dict[str, float]


def connect(url: str, **settings: Any) -> pulsar.Client:
    quiet = pulsar.ConsoleLogger(pulsar.LoggerLevel.Error)
    return pulsar.Client(url, logger=quiet, operation_timeout_seconds=60, **settings)


def publish(url: str, topic: str, size: str, seconds: str) -> Figures:
    client = connect(url)
    producer, payload = client.create_producer(topic, **BATCHED), os.urandom(int(size))
    send, began, sent = producer.send_async, time.monotonic(), 0
    end = began + float(seconds)
    while time.monotonic() < end:
        for _ in range(_BURST):
            send(payload, None)
        sent += _BURST
    producer.flush()
    took, good = time.monotonic() - began, producer.last_sequence_id() + 1
    client.close()
    if good != sent:
        raise SystemExit(f"{sent - good} of {sent} messages were not acknowledged")
    return {"value": good / took, "messages": good, "seconds": took}


def latency(url: str, topic: str, seconds: str) -> Figures:
    client = connect(url)
    producer, payload = client.create_producer(topic, **SINGLE), os.urandom(1024)
    taken: list[int] = []
    for period in (LATENCY_WARM_S, float(seconds)):
        taken.clear()
        end = time.monotonic() + period
        while time.monotonic() < end:
            before = time.monotonic_ns()
            producer.send(payload)
            taken.append(time.monotonic_ns() - before)
    client.close()
    return {"value": percentile(taken, 0.99), "p50_ms": percentile(taken, 0.5), "messages": len(taken)}


def e2e(url: str, topic: str, seconds: str) -> Figures:
    total = int(E2E_RATE * E2E_WARM_S) + int(E2E_RATE * float(seconds))
    command = [sys.executable, "-m", "bench.pulsar_worker", "consume", url, topic, str(total)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        consumer.stdout.readline()  # It has subscribed.
        client = connect(url)
        producer = client.create_producer(topic, batching_max_publish_delay_ms=1, **BATCHED)
        filler = os.urandom(1016)
        for due in paced(total):
            producer.send_async(struct.pack("<q", due) + filler, None)
        producer.flush()
        data = consumer.stdout.read()
        client.close()
    taken = list(struct.unpack(f"<{len(data) // 8}q", data))
    if len(taken) != total:
        raise SystemExit(f"{total - len(taken)} of {total} messages did not arrive")
    measured = taken[int(E2E_RATE * E2E_WARM_S) :]
    return {"value": percentile(measured, 0.99), "p50_ms": percentile(measured, 0.5), "messages": len(measured)}


def consume(url: str, topic: str, total: str) -> None:
    """The other process of `e2e`: a line when it has subscribed, then the latencies."""
    client = connect(url)
    consumer = client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=10_000)
    os.write(1, b"ready\n")
    taken = []
    for _ in range(int(total)):
        message = consumer.receive(PATIENCE_MS)
        taken.append(time.monotonic_ns() - struct.unpack_from("<q", message.data())[0])
        consumer.acknowledge(message)
    sys.stdout.buffer.write(struct.pack(f"<{len(taken)}q", *taken))
    sys.stdout.flush()
    client.close()


def paced(total: int) -> Iterator[int]:
    """Due times, each when it has come."""
    start, step = time.monotonic_ns() + 1_000_000, 1_000_000_000 // E2E_RATE
    for number in range(total):
        due = start + number * step
        ahead = due - time.monotonic_ns()
        if ahead > 50_000:
            time.sleep(ahead / 1e9)
        yield due


def open_topics(url: str, prefix: str, count: str) -> Figures:
    client = connect(url, io_threads=1)
    began = time.monotonic()
    with ThreadPoolExecutor(32) as pool:
        producers = list(
            pool.map(lambda number: client.create_producer(f"{prefix}-{number}", **SINGLE), range(int(count)))
        )
    took = time.monotonic() - began
    client.close()
    return {"value": len(producers) / took, "messages": len(producers), "seconds": took}


def write(url: str, topic: str, megabytes: str) -> Figures:
    client, payload = connect(url), os.urandom(1024)
    client.subscribe(topic, SUBSCRIPTION).close()  # It holds the data until it has been read.
    producer = client.create_producer(topic, **BATCHED)
    count = int(megabytes) * 1_000_000 // 1024
    for _ in range(count):
        producer.send_async(payload, None)
    producer.flush()
    client.close()
    return {"value": count, "messages": count}


def catch_up(url: str, topic: str, total: str) -> Figures:
    client = connect(url)
    began = time.monotonic()
    consumer = client.subscribe(topic, SUBSCRIPTION, receiver_queue_size=10_000)
    for number in range(1, int(total) + 1):
        message = consumer.receive(PATIENCE_MS)
        if number % 1000 == 0:
            consumer.acknowledge_cumulative(message)
    took = time.monotonic() - began
    client.close()
    return {"value": int(total) / took, "messages": int(total), "mb_s": int(total) * 1024 / took / 1e6}


def first(url: str, topic: str) -> Figures:
    deadline = time.monotonic() + FIRST_PATIENCE_S
    while True:
        client = connect(url)
        try:
            client.create_producer(topic).send(b"first")
            return {"value": time.monotonic()}
        except pulsar.PulsarException:
            if time.monotonic() > deadline:
                raise
        finally:
            client.close()


def percentile(nanoseconds: list[int], share: float) -> float:
    ordered = sorted(nanoseconds)
    return ordered[min(len(ordered) - 1, int(share * len(ordered)))] / 1e6


MEASUREMENTS: dict[str, Callable[..., Figures]] = {
    "publish": publish,
    "latency": latency,
    "e2e": e2e,
    "open": open_topics,
    "write": write,
    "catch-up": catch_up,
    "first": first,
}


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "consume":
        return consume(*arguments)
    return print_figures(MEASUREMENTS[what], arguments)


def print_figures(measure: Callable[..., Figures], arguments: list[str]) -> None:
    """What was measured, and the CPU that it cost this process and its children."""
    began = time.monotonic()
    figures = measure(*arguments)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    cpu = sum(usage.ru_utime + usage.ru_stime for usage in used)
    print(json.dumps({**figures, "cpu": cpu / (time.monotonic() - began), "cpu_s": cpu}))


if __name__ == "__main__":
    main()
