"""Load of Kafka clients that a server may be killed under: an idempotent producer, and the members of one group.

NumberedProducer   sends 0, 1, 2, …; every message must be acknowledged, however often the server is killed
GroupMembers       consumers on threads, which note what they see and commit
read_back          what is on the log of a partition, from the first offset on
"""

from __future__ import annotations

import itertools
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from confluent_kafka import OFFSET_BEGINNING, Consumer, KafkaError, Message, Producer, TopicPartition

from magnetar.errors import ProcessFailedError

WAIT_S: Final = 60.0
_POLL_S: Final = 0.1
_AT_ONCE: Final = 20
_SESSION_MS: Final = 6_000  # The least that brokers accept.
_COMMIT_EVERY_MS: Final = 200
_QUIET: Final = {"log_level": 0}  # Otherwise each attempt to connect to a killed server is a line.


class NumberedProducer:
    """A thread sends `rate` messages per second of one partition, from `with` on until `finish`."""

    def __init__(self, bootstrap: str, topic: str, rate: int) -> None:
        self.sent = 0
        self.acknowledged: list[int] = []
        self.failures: list[str] = []
        self._producer = Producer(
            {"bootstrap.servers": bootstrap, "enable.idempotence": True, "linger.ms": 1, **_QUIET}
        )
        self._topic = topic
        self._pause_s = _AT_ONCE / rate
        self._ends = threading.Event()
        self._thread = threading.Thread(target=self._run, name="numbered-producer", daemon=True)
        self._thread.start()

    @property
    def unanswered(self) -> int:
        return self.sent - len(self.acknowledged)

    def _run(self) -> None:
        while not self._ends.is_set():
            for _ in range(_AT_ONCE):
                self._producer.produce(self._topic, b"%d" % self.sent, partition=0, on_delivery=self._on_delivery)
                self.sent += 1
            self._producer.poll(self._pause_s)

    def _on_delivery(self, error: KafkaError | None, message: Message) -> None:
        if error is None:
            self.acknowledged.append(number_of(message))
        else:
            self.failures.append(str(error))

    def wait_acknowledged(self, more: int) -> None:
        """Returns when this many more are acknowledged, and others are not."""
        wanted = len(self.acknowledged) + more
        _wait_until(lambda: len(self.acknowledged) >= wanted and self.unanswered > 0, f"{more} acknowledgements")

    def finish(self) -> None:
        """Returns when all that was sent has its outcome."""
        self._ends.set()
        self._thread.join(WAIT_S)
        if left := self._producer.flush(WAIT_S):
            raise ProcessFailedError(f"{left} messages had no outcome within {WAIT_S:g} s")


class GroupMembers:
    """Consumers of one group, each on a thread, until `stop`."""

    def __init__(self, bootstrap: str, topic: str, count: int) -> None:
        self.seen: list[int] = []
        self.committed: Counter[int] = Counter()
        """The highest offset of each partition whose commit was answered."""
        self._settings = {
            "bootstrap.servers": bootstrap,
            "group.id": f"group of {topic}",
            "auto.offset.reset": "earliest",
            "session.timeout.ms": _SESSION_MS,
            "auto.commit.interval.ms": _COMMIT_EVERY_MS,
            "on_commit": self._on_commit,
            **_QUIET,
        }
        self._topic = topic
        self._stopping = threading.Event()
        self._more = threading.Condition()
        self._threads = [threading.Thread(target=self._run, daemon=True) for _ in range(count)]
        for thread in self._threads:
            thread.start()

    def _run(self) -> None:
        consumer = Consumer(self._settings)
        consumer.subscribe([self._topic])
        while not self._stopping.is_set():
            message = consumer.poll(_POLL_S)
            if message is not None and message.error() is None:
                with self._more:
                    self.seen.append(number_of(message))
                    self._more.notify_all()
        consumer.close()

    def _on_commit(self, error: KafkaError | None, partitions: Sequence[TopicPartition]) -> None:
        with self._more:
            for each in partitions:
                if error is None and each.error is None and each.offset > self.committed[each.partition]:
                    self.committed[each.partition] = each.offset

    def wait(self, holds: Callable[[list[int]], bool], seconds: float = WAIT_S) -> None:
        with self._more:
            if not self._more.wait_for(lambda: holds(self.seen), seconds):
                raise ProcessFailedError(f"the group saw {len(self.seen)} messages within {seconds:g} s, and not all")

    def find_committed(self, partitions: Sequence[int] = (0,)) -> list[int]:
        """Asks the coordinator."""
        consumer = Consumer({**self._settings, "on_commit": lambda *_: None})
        try:
            asked = [TopicPartition(self._topic, number) for number in partitions]
            return [each.offset for each in consumer.committed(asked, WAIT_S)]
        finally:
            consumer.close()

    def stop(self) -> list[int]:
        """Returns the committed offset of the first partition."""
        self._stopping.set()
        for thread in self._threads:
            thread.join(WAIT_S)
        return self.find_committed()


@dataclass(slots=True)
class LogTally:
    """What a log has, beside what was acknowledged."""

    messages: int
    lost: int
    duplicated: int
    out_of_order: int

    @property
    def passed(self) -> bool:
        return not (self.lost or self.duplicated or self.out_of_order)


def tally(numbers: Sequence[int], acknowledged: Sequence[int]) -> LogTally:
    counted = Counter(numbers)
    first_seen = list(dict.fromkeys(numbers))
    return LogTally(
        messages=len(numbers),
        lost=len(set(acknowledged) - set(counted)),
        duplicated=sum(count - 1 for count in counted.values()),
        out_of_order=sum(left > right for left, right in itertools.pairwise(first_seen)),
    )


def read_back(bootstrap: str, topic: str) -> Iterator[Message]:
    """Yields the messages of partition 0, and ends at its end."""
    consumer = Consumer(
        {"bootstrap.servers": bootstrap, "group.id": "none", "enable.partition.eof": True, "enable.auto.commit": False}
    )
    try:
        consumer.assign([TopicPartition(topic, 0, OFFSET_BEGINNING)])
        while True:
            message = consumer.poll(WAIT_S)
            if message is None:
                raise ProcessFailedError(f"no message of {topic} came within {WAIT_S:g} s")
            if (error := message.error()) is None:
                yield message
            elif error.code() == KafkaError._PARTITION_EOF:
                return
            else:
                raise ProcessFailedError(f"{topic} could not be read: {error}")
    finally:
        consumer.close()


def number_of(message: Message) -> int:
    value = message.value()
    assert isinstance(value, bytes)
    return int(value)


def _wait_until(holds: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + WAIT_S
    while not holds():
        if time.monotonic() > deadline:
            raise ProcessFailedError(f"{what} did not come within {WAIT_S:g} s")
        time.sleep(0.001)
