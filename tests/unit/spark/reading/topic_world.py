"""A topic of ledgers in memory, as a cluster shows it to a reader."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace

from magnetar.errors import TopicNotFoundError
from magnetar.spark.cluster import ClusterOptions, FoundPlace, SegmentLedger, Segments, Tail
from magnetar.spark.reading.options import ReadOptions, parse_read_options
from magnetar.topic.position import Position
from magnetar.wire.bookkeeper.digests import DigestType
from magnetar.wire.bookkeeper.frames import Buffer
from magnetar.wire.pulsar.frames import with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import MessageMetadata

TOPIC = "persistent://public/default/orders"
CLUSTER = ClusterOptions("pulsar://broker:6650", "http://broker:8080")


def ledger(ledger_id: int, entries: int, first_index: int | None = 0, size_bytes: int | None = None) -> SegmentLedger:
    size = entries * 1_000 if size_bytes is None else size_bytes
    return SegmentLedger(ledger_id, entries, size, first_index, b"m", DigestType.CRC32C, b"")


def segments(*ledgers: SegmentLedger, topic: str = TOPIC) -> Segments:
    """One message in each entry."""
    filled = [each for each in ledgers if each.entries]
    last = Position(filled[-1].ledger_id, filled[-1].entries - 1) if filled else Position(ledgers[0].ledger_id, -1)
    assert ledgers[-1].first_index is not None
    next_index = ledgers[-1].first_index + ledgers[-1].entries
    earliest = Position(filled[0].ledger_id, 0) if filled else Position(ledgers[-1].ledger_id, 0)
    return Segments(topic, last, next_index, earliest, False, ledgers)


def options(**given: str) -> ReadOptions:
    return parse_read_options({"topic": "orders", **given})


def plain_entry(text: str) -> bytes:
    metadata = MessageMetadata(producer_name="p", sequence_id=1, publish_time=1)
    return with_checksum(metadata.SerializeToString(), text.encode())


class FakeCluster:
    """Topics by name; each entry is one message, the text of its position."""

    def __init__(self, **topics: Segments) -> None:
        self.topics: dict[str, Segments] = {
            f"persistent://public/default/{name}": each for name, each in topics.items()
        }
        self.partition_counts: dict[str, int] = {}
        self.asked: list[str] = []
        self.errors: list[Exception] = []
        self.stored: dict[Position, bytes] = {}
        """Entries that are more than a plain message."""
        self.options = CLUSTER

    def set(self, name: str, *ledgers: SegmentLedger) -> None:
        full = f"persistent://public/default/{name}"
        self.topics[full] = segments(*ledgers, topic=full)

    async def segments(self, topic: str, from_ledger: int = 0) -> Segments:
        self._asked("segments", topic)
        found = self._found(topic)
        return replace(found, ledgers=tuple(each for each in found.ledgers if each.ledger_id >= from_ledger))

    async def wait(self, topic: str, after: Position, timeout_ms: int = 500) -> Tail:
        self._asked("wait", topic)
        found = self._found(topic)
        return Tail(found.last_confirmed, found.next_index)

    async def place(self, topic: str, text: str) -> FoundPlace:
        self._asked(f"place {text}", topic)
        found = self._found(topic)
        if text.startswith("-"):
            text = f"index:{found.next_index + int(text)}"
        if text.startswith("index:"):
            index = int(text.removeprefix("index:"))
            position = next((at for at, i in positions(found) if i >= index), Position(2**63 - 1, 2**63 - 1))
        else:
            position = Position(*map(int, text.split(":")))
        index = next((i for at, i in positions(found) if at >= position), found.next_index)
        return FoundPlace(position, -1, index)

    async def cut(
        self, topic: str, start: Position, end: Position, *, messages: int | None = None, size_bytes: int | None = None
    ) -> Position:
        self._asked(f"cut {messages} {size_bytes}", topic)
        wanted = messages or max((size_bytes or 0) // 1_000, 1)
        between = [at for at, _ in positions(self._found(topic)) if start <= at < end]
        return between[wanted] if wanted < len(between) else end

    async def partitions(self, topic: str) -> int:
        return self.partition_counts.get(topic, 0)

    async def topics_of(self, namespace: str) -> list[str]:
        return sorted(self.topics)

    async def read_entries(
        self, wanted: SegmentLedger, first: int, last: int
    ) -> AsyncIterator[tuple[int, list[Buffer]]]:
        for entry in range(first, last + 1):
            at = Position(wanted.ledger_id, entry)
            yield entry, [self.stored.get(at) or plain_entry(str(at))]

    def _found(self, topic: str) -> Segments:
        if topic not in self.topics:
            raise TopicNotFoundError(f"topic {topic} does not exist")
        return self.topics[topic]

    def _asked(self, what: str, topic: str) -> None:
        self.asked.append(f"{what} {topic.rpartition('/')[2]}")
        if self.errors:
            raise self.errors.pop(0)


def positions(found: Segments) -> list[tuple[Position, int]]:
    return [
        (Position(each.ledger_id, entry), each.first_index + entry)
        for each in found.ledgers
        if each.first_index is not None
        for entry in range(each.entries)
    ]
