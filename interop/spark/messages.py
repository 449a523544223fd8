"""What is in a topic, by the official client, and whether one topic holds exactly what another does."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final
from urllib.request import Request, urlopen

import pulsar

from workloads.pulsar_load import connect

PARTITIONS: Final = 2
PATIENCE_MS: Final = 30_000
_NOTES_MAX: Final = 5

Message = tuple[str, bytes]
"""Key, value."""


def value_of(number: int, size: int) -> bytes:
    """Every one is different; the number is in front."""
    head = b"%d:" % number
    return head + bytes([number % 251]) * (size - len(head))


def head_of(value: bytes) -> str:
    return value.partition(b":")[0].decode(errors="replace")


def create_topic(admin_url: str, topic: str, partitions: int = PARTITIONS) -> None:
    name = topic.replace("://", "/")
    request = Request(
        f"{admin_url}/admin/v2/{name}/partitions",
        str(partitions).encode(),
        {"Content-Type": "application/json"},
        method="PUT",
    )
    with urlopen(request, timeout=60):
        pass


def fill(url: str, topic: str, log: Path, *, count: int, size: int, keys: int) -> None:
    client = connect(url, log)
    producer = client.create_producer(topic, batching_enabled=True, block_if_queue_full=True, batching_max_messages=100)
    for number in range(count):
        producer.send_async(value_of(number, size), None, partition_key=f"key-{number % keys}")
    producer.flush()
    client.close()


def read(url: str, topic: str, log: Path, partitions: int = PARTITIONS) -> list[list[Message]]:
    """Of every partition, in its order."""
    client = connect(url, log)
    try:
        names = [f"{topic}-partition-{number}" for number in range(partitions)]
        return [[(each.partition_key(), each.data()) for each in each_message(client, name)] for name in names]
    finally:
        client.close()


def each_message(client: pulsar.Client, topic: str, **options: Any) -> Iterator[pulsar.Message]:
    """All of a topic that is not partitioned, or of one partition, in its order. The broker says where it ends: that
    nothing has come for a while would also be said by a busy machine."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest, **options)
    try:
        while reader.has_message_available():
            yield reader.read_next(PATIENCE_MS)
    finally:
        reader.close()


@dataclass(slots=True)
class Verdict:
    """One topic held against another."""

    wanted: int
    found: int
    lost: int = 0
    doubled: int = 0
    strange: int = 0
    """In the second topic, but never in the first."""
    out_of_order: int = 0
    """Keys whose messages are all there, once, but not in their order."""
    notes: list[str] = field(default_factory=list)

    @property
    def passed(self) -> bool:
        return self.wanted > 0 and not (self.lost or self.doubled or self.strange or self.out_of_order)


def compare(wanted: Sequence[Iterable[Message]], found: Sequence[Iterable[Message]]) -> Verdict:
    """Both by partition. A key is in one partition of each, so its order is that of its partition; a key that is in two
    has none, and counts as out of order."""
    before, after = _by_key(wanted), _by_key(found)
    verdict = Verdict(sum(map(len, before.values())), sum(map(len, after.values())))
    for key in sorted(before.keys() | after.keys()):
        _compare_key(key, before.get(key, []), after.get(key, []), verdict)
    scattered = sorted(_scattered(found))
    if scattered:
        verdict.out_of_order += len(scattered)
        verdict.notes.append(f"in more than one partition: {', '.join(scattered[:_NOTES_MAX])}")
    return verdict


def _compare_key(key: str, wanted: list[bytes], found: list[bytes], verdict: Verdict) -> None:
    if wanted == found:
        return
    expected, seen = Counter(wanted), Counter(found)
    lost, more = expected - seen, seen - expected
    verdict.lost += lost.total()
    for value, times in sorted(more.items()):
        if value in expected:
            verdict.doubled += times
        else:
            verdict.strange += times
    if not lost and not more:
        verdict.out_of_order += 1
    if len(verdict.notes) < _NOTES_MAX:
        verdict.notes.append(
            f"{key}: lost {_heads(lost)}, too many {_heads(more)}" if lost or more else f"{key}: not in order"
        )


def _by_key(partitions: Sequence[Iterable[Message]]) -> Mapping[str, list[bytes]]:
    found: dict[str, list[bytes]] = {}
    for messages in partitions:
        for key, value in messages:
            found.setdefault(key, []).append(value)
    return found


def _scattered(partitions: Sequence[Iterable[Message]]) -> set[str]:
    seen: Counter[str] = Counter()
    for messages in partitions:
        seen.update({key for key, _ in messages})
    return {key for key, times in seen.items() if times > 1}


def _heads(values: Counter[bytes]) -> str:
    heads = [head_of(value) for value in sorted(values)]
    return ", ".join(heads[:_NOTES_MAX]) + (" …" if len(heads) > _NOTES_MAX else "") if heads else "none"
