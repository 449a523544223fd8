"""Each client writes each shape of messages, each client reads them, and every field is what docs/kafka.md says."""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Iterator

import pytest

from interop.java_program import JavaProgram
from interop.kafka.clients import Client, Seen, all_clients
from interop.kafka.conftest import Server
from interop.kafka.records import PulsarView, Record, Shape, as_kafka_sees, as_pulsar_sees

CLIENTS = ("pulsar-client", "confluent", "kafka-python", "aiokafka", "Java Kafka")
PULSAR = "pulsar-client"
_READ_S = 100

FINE, LEFT_OUT = "yes", "–"


class Matrix:
    """Topics are written when they are first read."""

    def __init__(self, clients: dict[str, Client]) -> None:
        self.clients = clients
        self.cells: dict[tuple[str, str], dict[str, str]] = {}
        self._written: set[str] = set()

    async def topic_of(self, writer: str, shape: Shape) -> str:
        topic = f"{writer} {shape.name}".replace(" ", "-").replace(",", "").lower()
        if topic not in self._written:
            await asyncio.wait_for(self.clients[writer].write(topic, shape), _READ_S)
            self._written.add(topic)
        return topic

    def lines(self) -> Iterator[str]:
        columns = list(dict.fromkeys(shape for cell in self.cells.values() for shape in cell))
        yield "| written by | read by | " + " | ".join(columns) + " |"
        for (writer, reader), cell in sorted(self.cells.items()):
            yield f"| {writer} | {reader} | " + " | ".join(cell.get(shape, LEFT_OUT) for shape in columns) + " |"


@pytest.fixture(scope="module")
def matrix(standalone: Server, program: JavaProgram) -> Matrix:
    return Matrix(dict(all_clients(standalone.bootstrap, standalone.url, program)))


@pytest.mark.parametrize("reader", CLIENTS)
@pytest.mark.parametrize("writer", CLIENTS)
async def test_every_field_arrives_as_documented(matrix: Matrix, writer: str, reader: str) -> None:
    cell = matrix.cells[writer, reader] = {}
    wrong: list[str] = []
    for shape in matrix.clients[writer].shapes:
        if not matrix.clients[reader].can_read(_stored_codec(writer, shape)):
            continue
        topic = await matrix.topic_of(writer, shape)
        found = await asyncio.wait_for(matrix.clients[reader].read(topic, len(shape.records)), _READ_S)
        difference = _difference(found, writer, reader, shape)
        cell[shape.name] = "NO" if difference else FINE
        wrong += [difference] if difference else []
    assert not wrong, "\n".join(wrong)


def test_the_matrix_has_every_pair_of_clients(matrix: Matrix, capsys: pytest.CaptureFixture[str]) -> None:
    with capsys.disabled():
        print("\n".join(f"  {line}" for line in matrix.lines()), flush=True)
    assert set(matrix.cells) == set(itertools.product(CLIENTS, CLIENTS))
    assert all(cell for cell in matrix.cells.values())


def _stored_codec(writer: str, shape: Shape) -> str:
    """What is converted from Pulsar is sent without compression."""
    return "none" if writer == PULSAR else shape.codec


def _difference(found: list[Seen], writer: str, reader: str, shape: Shape) -> str:
    for number, (seen, record) in enumerate(zip(found, shape.records, strict=True)):
        wanted = Seen(number, _view(record, writer, reader))
        if writer == PULSAR and isinstance(seen.content, Record):
            seen = Seen(seen.offset, as_kafka_sees(seen.content))
        if seen != wanted:
            return f"{shape.name}, record {number}: wanted {wanted}, found {seen}"
    return ""


def _view(record: Record, writer: str, reader: str) -> Record | PulsarView:
    if reader == PULSAR:
        return as_pulsar_sees(record)
    return as_kafka_sees(record) if writer == PULSAR else record
