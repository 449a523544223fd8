"""One measurement of a server that serves Kafka clients, with librdkafka, in a process of its own; prints JSON.

    python -m bench.kafka_worker publish BOOTSTRAP TOPIC SIZE SECONDS

publish     one producer as fast as it goes, acks=all, the client's own limits for batches, until all is acknowledged.
            Only failures are reported to Python, so that the rate is not that of callbacks
latency     1 KiB, acks=all, one message in flight, no linger
e2e         RATE messages per second of 1 KiB; from the due time in the producer's process to `poll` in the consumer's.
            A late sender is not forgiven: its lateness counts
write       MEGABYTES of 1 KiB, for `catch-up` and `cross-read`
catch-up    a consumer reads what was written, from the beginning
cross-write MEGABYTES of 1 KiB by a client of Pulsar; BOOTSTRAP is its address
cross-read  a reader of Pulsar reads what was written; BOOTSTRAP is its address

The CPU that is reported is this process's own, and its children's.
"""

from __future__ import annotations

import os
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pulsar
from confluent_kafka import Consumer, KafkaError, Message, Producer, TopicPartition
from confluent_kafka.admin import AdminClient, NewTopic

from bench.pulsar_worker import BATCHED, PATIENCE_MS, Figures, connect, paced, percentile, print_figures

E2E_RATE = 5_000
E2E_WARM_S = 2.0
LATENCY_WARM_S = 1.0
_BURST = 200  # Sends between two looks at the clock.
_PATIENCE_S = 60
_READ_AT_ONCE = 1_000


class Failures(list[KafkaError]):
    """The client calls it for each message that was not delivered."""

    def __call__(self, error: KafkaError | None, _message: Message) -> None:
        if error is not None:
            self.append(error)


def make_topic(bootstrap: str, topic: str) -> None:
    admin = AdminClient({"bootstrap.servers": bootstrap})
    admin.create_topics([NewTopic(topic, 1, 1)])[topic].result(_PATIENCE_S)


def make_producer(bootstrap: str, **settings: Any) -> tuple[Producer, Failures]:
    failures = Failures()
    given = {"bootstrap.servers": bootstrap, "acks": "all", "delivery.report.only.error": True}
    return Producer({**given, "on_delivery": failures, **settings}), failures


def make_consumer(bootstrap: str, topic: str) -> Consumer:
    consumer = Consumer({"bootstrap.servers": bootstrap, "group.id": "bench", "enable.auto.commit": False})
    consumer.assign([TopicPartition(topic, 0, 0)])
    return consumer


def push(producer: Producer, topic: str, payload: bytes) -> None:
    """Waits for room when the client's queue is full."""
    while True:
        try:
            return producer.produce(topic, payload)
        except BufferError:
            producer.poll(0.001)


def finish(producer: Producer, failures: Failures) -> None:
    if (left := producer.flush(_PATIENCE_S)) or failures:
        raise SystemExit(f"{left + len(failures)} messages were not acknowledged: {failures[:1]}")


def publish(bootstrap: str, topic: str, size: str, seconds: str) -> Figures:
    make_topic(bootstrap, topic)
    producer, failures = make_producer(bootstrap)
    payload, began, sent = os.urandom(int(size)), time.monotonic(), 0
    end = began + float(seconds)
    while time.monotonic() < end:
        for _ in range(_BURST):
            push(producer, topic, payload)
        sent += _BURST
    finish(producer, failures)
    took = time.monotonic() - began
    return {"value": sent / took, "messages": sent, "seconds": took}


def latency(bootstrap: str, topic: str, seconds: str) -> Figures:
    make_topic(bootstrap, topic)
    producer, failures = make_producer(bootstrap, **{"linger.ms": 0, "delivery.report.only.error": False})
    payload, taken = os.urandom(1024), list[int]()
    for period in (LATENCY_WARM_S, float(seconds)):
        taken.clear()
        end = time.monotonic() + period
        while time.monotonic() < end:
            before = time.monotonic_ns()
            producer.produce(topic, payload)
            finish(producer, failures)
            taken.append(time.monotonic_ns() - before)
    return {"p99_ms": percentile(taken, 0.99), "p50_ms": percentile(taken, 0.5), "messages": len(taken)}


def e2e(bootstrap: str, topic: str, seconds: str) -> Figures:
    warm, total = int(E2E_RATE * E2E_WARM_S), int(E2E_RATE * (E2E_WARM_S + float(seconds)))
    make_topic(bootstrap, topic)
    command = [sys.executable, "-m", "bench.kafka_worker", "consume", bootstrap, topic, str(total)]
    with subprocess.Popen(command, stdout=subprocess.PIPE) as consumer:
        assert consumer.stdout is not None
        consumer.stdout.readline()  # It fetches.
        producer, failures = make_producer(bootstrap, **{"linger.ms": 1})
        filler = os.urandom(1016)
        for due in paced(total):
            push(producer, topic, struct.pack("<q", due) + filler)
        finish(producer, failures)
        data = consumer.stdout.read()
    taken = list(struct.unpack(f"<{len(data) // 8}q", data))
    if len(taken) != total:
        raise SystemExit(f"{total - len(taken)} of {total} messages did not arrive")
    measured = taken[warm:]
    return {"p99_ms": percentile(measured, 0.99), "p50_ms": percentile(measured, 0.5), "messages": len(measured)}


def consume(bootstrap: str, topic: str, total: str) -> None:
    """The other process of `e2e`: a line when it fetches, then the latencies."""
    consumer = make_consumer(bootstrap, topic)
    consumer.poll(1)
    os.write(1, b"ready\n")
    taken: list[int] = []
    while len(taken) < int(total):
        message = consumer.poll(PATIENCE_MS / 1_000)
        if message is None:
            break
        taken.append(time.monotonic_ns() - struct.unpack_from("<q", _value(message))[0])
    sys.stdout.buffer.write(struct.pack(f"<{len(taken)}q", *taken))
    sys.stdout.flush()
    consumer.close()


def _value(message: Message) -> bytes:
    if (error := message.error()) is not None:
        raise SystemExit(f"a consumer got an error: {error}")
    value = message.value()
    assert isinstance(value, bytes)
    return value


def write(bootstrap: str, topic: str, megabytes: str) -> Figures:
    make_topic(bootstrap, topic)
    producer, failures = make_producer(bootstrap)
    payload, count = os.urandom(1024), int(megabytes) * 1_000_000 // 1024
    for _ in range(count):
        push(producer, topic, payload)
    finish(producer, failures)
    return {"value": count, "messages": count}


def catch_up(bootstrap: str, topic: str, total: str) -> Figures:
    began, got = time.monotonic(), 0
    consumer = make_consumer(bootstrap, topic)
    while got < int(total):
        found = consumer.consume(min(_READ_AT_ONCE, int(total) - got), PATIENCE_MS / 1_000)
        if not found:
            raise SystemExit(f"only {got} of {total} messages came")
        got += len([_value(message) for message in found])
    return _read_figures(got, time.monotonic() - began)


def cross_write(url: str, topic: str, megabytes: str) -> Figures:
    client, payload, count = connect(url), os.urandom(1024), int(megabytes) * 1_000_000 // 1024
    producer = client.create_producer(topic, **BATCHED)
    for _ in range(count):
        producer.send_async(payload, None)
    producer.flush()
    client.close()
    return {"value": count, "messages": count}


def cross_read(url: str, topic: str, total: str) -> Figures:
    client = connect(url)
    began = time.monotonic()
    reader = client.create_reader(topic, pulsar.MessageId.earliest, receiver_queue_size=10_000)
    for _ in range(int(total)):
        reader.read_next(PATIENCE_MS)
    took = time.monotonic() - began
    client.close()
    return _read_figures(int(total), took)


def _read_figures(count: int, took: float) -> Figures:
    return {"value": count / took, "messages": count, "mb_s": count * 1024 / took / 1e6}


MEASUREMENTS: dict[str, Callable[..., Figures]] = {
    "publish": publish,
    "latency": latency,
    "e2e": e2e,
    "write": write,
    "catch-up": catch_up,
    "cross-write": cross_write,
    "cross-read": cross_read,
}


def main() -> None:
    what, *arguments = sys.argv[1:]
    if what == "consume":
        return consume(*arguments)
    return print_figures(MEASUREMENTS[what], arguments)


if __name__ == "__main__":
    main()
