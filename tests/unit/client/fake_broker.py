"""A broker for tests of the client: topics are lists of entries in memory, and anything can be answered otherwise.

It runs in the simulator, as the client does in these tests: time is virtual and nothing is waited for.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Coroutine
from dataclasses import dataclass, field
from typing import Any, TypeVar

from magnetar.client import ClientOptions, PulsarClient
from magnetar.sim.machine import SimEntropy, SimRuntime
from magnetar.sim.world import World
from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.entry import broker_entry_header
from magnetar.wire.pulsar.frames import Frame, FrameDecoder
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import BaseCommand

T = TypeVar("T")

PORT = 6650
URL = f"pulsar://broker:{PORT}"
LEDGER = 7
TOPIC = "persistent://public/default/t"
Answer = Callable[["Link", Frame], bytes | None]


@dataclass
class FakeConsumer:
    topic: str
    permits: int = 0
    next_entry: int = 0
    epoch: int = 0


@dataclass
class FakeBroker:
    host: str = "broker"
    topics: dict[str, list[bytes]] = field(default_factory=lambda: defaultdict(list))
    partitions: dict[str, int] = field(default_factory=dict)
    links: list[Link] = field(default_factory=list)
    seen: list[Frame] = field(default_factory=list)
    acked: list[api.CommandAck] = field(default_factory=list)
    last_sequence_id: int = -1
    max_message_size: int = 5 << 20
    sends_header: bool = False
    owner_url: str = ""
    answers: dict[int, Answer] = field(default_factory=dict)
    """Instead of the usual: what to send for a command of this type; None falls back to the usual."""

    async def main(self, _runtime: SimRuntime) -> None:
        await asyncio.get_running_loop().create_server(lambda: Link(self), self.host, PORT)
        await asyncio.Event().wait()

    def count(self, kind: int) -> int:
        return sum(frame.command.type == kind for frame in self.seen)

    def commands(self, kind: int) -> list[BaseCommand]:
        return [frame.command for frame in self.seen if frame.command.type == kind]

    def disconnect_all(self) -> None:
        for link in [link for link in self.links if link.is_up]:
            link.transport.abort()

    def deliver_all(self) -> None:
        for link in self.links:
            link.deliver()


class Link(asyncio.Protocol):
    """One connection's end at the broker."""

    transport: asyncio.Transport

    def __init__(self, broker: FakeBroker) -> None:
        self.broker = broker
        self.is_up = False
        self.received = b""
        self.producers: dict[int, str] = {}
        self.consumers: dict[int, FakeConsumer] = {}

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport = transport  # type: ignore[assignment]
        self.is_up = True
        self.broker.links.append(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.is_up = False
        self.consumers.clear()

    def data_received(self, data: bytes) -> None:
        self.received += data
        start = 0
        for frame, following in FrameDecoder().frames(self.received, 0, len(self.received)):
            body = frame.headers_and_payload
            self._on_frame(Frame(frame.command, None if body is None else memoryview(bytes(body))))
            start = following
        self.received = self.received[start:]

    def _on_frame(self, frame: Frame) -> None:
        self.broker.seen.append(frame)
        kind = frame.command.type
        special = self.broker.answers.get(kind)
        answer = special(self, frame) if special is not None else None
        if answer is None:
            name = BaseCommand.Type.Name(kind).lower()
            answer = getattr(self, f"on_{name}")(frame)
        if self.is_up and answer:
            self.transport.write(answer)

    def on_connect(self, frame: Frame) -> bytes:
        command = BaseCommand(type=BaseCommand.CONNECTED)
        command.connected.server_version = "fake"
        command.connected.protocol_version = frame.command.connect.protocol_version
        command.connected.max_message_size = self.broker.max_message_size
        return encode.encode_command(command)

    def on_ping(self, _frame: Frame) -> bytes:
        return encode.PONG

    def on_pong(self, _frame: Frame) -> bytes:
        return b""

    def on_partitioned_metadata(self, frame: Frame) -> bytes:
        request = frame.command.partitionMetadata
        command = BaseCommand(type=BaseCommand.PARTITIONED_METADATA_RESPONSE)
        answer = command.partitionMetadataResponse
        answer.request_id, answer.partitions = request.request_id, self.broker.partitions.get(request.topic, 0)
        answer.response = api.CommandPartitionedTopicMetadataResponse.Success
        return encode.encode_command(command)

    def on_lookup(self, frame: Frame) -> bytes:
        return lookup_answer(frame, self.broker.owner_url or f"pulsar://{self.broker.host}:{PORT}")

    def on_producer(self, frame: Frame) -> bytes:
        request = frame.command.producer
        self.producers[request.producer_id] = request.topic
        command = BaseCommand(type=BaseCommand.PRODUCER_SUCCESS)
        answer = command.producer_success
        answer.request_id, answer.producer_name = request.request_id, request.producer_name or "fake-0-1"
        answer.last_sequence_id = self.broker.last_sequence_id
        return encode.encode_command(command)

    def on_send(self, frame: Frame) -> bytes:
        send = frame.command.send
        stored = self.broker.topics[self.producers[send.producer_id]]
        assert frame.headers_and_payload is not None
        stored.append(bytes(frame.headers_and_payload))
        asyncio.get_running_loop().call_soon(self.broker.deliver_all)
        return encode.encode_send_receipt(
            send.producer_id, send.sequence_id, send.highest_sequence_id, LEDGER, len(stored) - 1
        )

    def on_close_producer(self, frame: Frame) -> bytes:
        self.producers.pop(frame.command.close_producer.producer_id, None)
        return encode.encode_success(frame.command.close_producer.request_id)

    def on_subscribe(self, frame: Frame) -> bytes:
        request = frame.command.subscribe
        consumer = FakeConsumer(request.topic, epoch=request.consumer_epoch)
        if request.HasField("start_message_id"):
            start = request.start_message_id
            begins = 0 if start.entryId == 2**64 - 1 else start.entryId  # With that entry, as Pulsar's brokers do.
            consumer.next_entry = 0 if start.ledgerId == 2**64 - 1 else begins
            if start.ledgerId == 2**63 - 1:
                consumer.next_entry = len(self.broker.topics[request.topic])
        self.consumers[request.consumer_id] = consumer
        return encode.encode_success(request.request_id)

    def on_flow(self, frame: Frame) -> bytes:
        consumer = self.consumers.get(frame.command.flow.consumer_id)
        if consumer is not None:
            consumer.permits += frame.command.flow.messagePermits
            asyncio.get_running_loop().call_soon(self.deliver)
        return b""

    def deliver(self) -> None:
        for consumer_id, consumer in self.consumers.items():
            stored = self.broker.topics[consumer.topic]
            while self.is_up and consumer.permits > 0 and consumer.next_entry < len(stored):
                entry_id = consumer.next_entry
                consumer.next_entry += 1
                consumer.permits -= 1
                self.transport.write(self.message(consumer_id, entry_id, stored[entry_id], consumer.epoch))

    def message(self, consumer_id: int, entry_id: int, body: bytes, epoch: int, redeliveries: int = 0) -> bytes:
        if self.broker.sends_header:
            body = broker_entry_header(100 + entry_id, 1_700_000_000_000) + body
        head = encode.encode_message_head(consumer_id, LEDGER, entry_id, -1, redeliveries, None, epoch, len(body))
        return head + body

    def on_ack(self, frame: Frame) -> bytes:
        ack = frame.command.ack
        self.broker.acked.append(ack)
        return encode.encode_ack_response(ack.consumer_id, ack.request_id) if ack.HasField("request_id") else b""

    def on_redeliver_unacknowledged_messages(self, frame: Frame) -> bytes:
        request = frame.command.redeliverUnacknowledgedMessages
        consumer = self.consumers[request.consumer_id]
        stored = self.broker.topics[consumer.topic]
        if not request.message_ids:
            consumer.next_entry, consumer.epoch = 0, request.consumer_epoch
            asyncio.get_running_loop().call_soon(self.deliver)
            return b""
        ids = [message_id.entryId for message_id in request.message_ids]
        return b"".join(self.message(request.consumer_id, at, stored[at], consumer.epoch, 1) for at in ids)

    def on_seek(self, frame: Frame) -> bytes:
        """As Pulsar does it: the consumer is sent away, and comes back."""
        request = frame.command.seek
        del self.consumers[request.consumer_id]
        command = BaseCommand(type=BaseCommand.CLOSE_CONSUMER)
        command.close_consumer.consumer_id, command.close_consumer.request_id = request.consumer_id, 0
        return encode.encode_command(command) + encode.encode_success(request.request_id)

    def on_get_last_message_id(self, frame: Frame) -> bytes:
        request = frame.command.getLastMessageId
        consumer = self.consumers[request.consumer_id]
        command = BaseCommand(type=BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        answer = command.getLastMessageIdResponse
        answer.request_id = request.request_id
        answer.last_message_id.ledgerId = LEDGER
        answer.last_message_id.entryId = (len(self.broker.topics[consumer.topic]) - 1) % 2**64
        answer.consumer_mark_delete_position.ledgerId = LEDGER
        answer.consumer_mark_delete_position.entryId = (consumer.next_entry - 1) % 2**64
        return encode.encode_command(command)

    def on_unsubscribe(self, frame: Frame) -> bytes:
        del self.consumers[frame.command.unsubscribe.consumer_id]
        return encode.encode_success(frame.command.unsubscribe.request_id)

    def on_close_consumer(self, frame: Frame) -> bytes:
        self.consumers.pop(frame.command.close_consumer.consumer_id, None)
        return encode.encode_success(frame.command.close_consumer.request_id)

    def on_get_topics_of_namespace(self, frame: Frame) -> bytes:
        command = BaseCommand(type=BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        command.getTopicsOfNamespaceResponse.request_id = frame.command.getTopicsOfNamespace.request_id
        command.getTopicsOfNamespaceResponse.topics.extend(sorted(self.broker.topics))
        return encode.encode_command(command)


def lookup_answer(frame: Frame, url: str, kind: int = api.CommandLookupTopicResponse.Connect) -> bytes:
    command = BaseCommand(type=BaseCommand.LOOKUP_RESPONSE)
    answer = command.lookupTopicResponse
    answer.request_id, answer.response = frame.command.lookupTopic.request_id, kind  # type: ignore[assignment]
    answer.brokerServiceUrl = url
    return encode.encode_command(command)


def run(
    scenario: Callable[[PulsarClient, FakeBroker], Coroutine[Any, Any, T]],
    *,
    options: ClientOptions | None = None,
    others: tuple[FakeBroker, ...] = (),
    seed: str = "1",
    url: str = URL,
) -> T:
    """Runs it with a client and a broker on hosts of their own; the client is closed after it."""
    broker = FakeBroker()

    async def driver() -> T:
        async with PulsarClient(url, SimEntropy(f"{seed}/client"), options) as client:
            return await scenario(client, broker)

    with World(seed) as world:
        for one in (broker, *others):
            world.add_node(one.host)
            world.start(one.host, one.main)
        return world.run(driver())
