"""Finished entries are sent as they are, again after a lost connection, and never silently lost."""

from __future__ import annotations

import dataclasses

import pyarrow as pa
import pytest

from magnetar.client import PulsarClient
from magnetar.errors import MagnetarError, TopicTerminatedError
from magnetar.spark.encoding.encoder import Entry
from magnetar.spark.writing import tasks
from magnetar.spark.writing.tasks import EntryProducer
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.frames import Frame
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand
from tests.unit.client.fake_broker import TOPIC, FakeBroker, Link, run
from tests.unit.spark.encoding.decoded import SEAL
from tests.unit.spark.encoding.decoded import encode as encode_rows


def entries_of(rows: int) -> list[Entry]:
    batch = pa.record_batch({"value": [b"%05d" % number * 20 for number in range(rows)]})
    return encode_rows([batch], dataclasses.replace(SEAL, entry_bytes=5_000), topic=TOPIC)


def test_entries_arrive_as_they_were_made_under_the_given_name() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        entries = entries_of(300)
        producer = EntryProducer(client._brokers, TOPIC, "spark/q/0")
        await producer.open()
        for entry in entries:
            await producer.send(entry)
        await producer.aclose()

        assert broker.topics[TOPIC] == [entry.body for entry in entries]
        assert broker.commands(BaseCommand.PRODUCER)[0].producer.producer_name == "spark/q/0"
        sent = [command.send for command in broker.commands(BaseCommand.SEND)]
        assert [(send.sequence_id, send.num_messages) for send in sent] == [
            (entry.sequence_id, entry.rows) for entry in entries
        ]

    run(scenario)


def test_what_has_no_receipt_is_sent_again_after_a_lost_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tasks, "_PENDING_BYTES_MAX", 12_000)

    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        lost = 0

        def lose_third(link: Link, _frame: Frame) -> bytes | None:
            nonlocal lost
            lost += 1
            if lost == 3:
                link.transport.abort()
                return b"-"  # Nothing is stored, nothing is answered.
            return None

        broker.answers[BaseCommand.SEND] = lose_third
        producer = EntryProducer(client._brokers, TOPIC, "spark/q/0")
        await producer.open()
        entries = entries_of(300)
        for entry in entries:
            await producer.send(entry)
        await producer.aclose()

        assert sorted(set(broker.topics[TOPIC])) == sorted(entry.body for entry in entries)
        assert broker.count(BaseCommand.PRODUCER) == 2

    run(scenario)


def test_a_refused_entry_fails_the_task() -> None:
    async def scenario(client: PulsarClient, broker: FakeBroker) -> None:
        def refuse(_link: Link, frame: Frame) -> bytes:
            send = frame.command.send
            return encode.encode_send_error(send.producer_id, send.sequence_id, api.TopicTerminatedError, "over")

        broker.answers[BaseCommand.SEND] = refuse
        producer = EntryProducer(client._brokers, TOPIC, "spark/q/0")
        await producer.open()
        await producer.send(entries_of(1)[0])
        with pytest.raises(TopicTerminatedError, match="over"):
            await producer.aclose()
        await producer.abandon()
        with pytest.raises(MagnetarError):
            await producer.send(entries_of(1)[0])

    run(scenario)
