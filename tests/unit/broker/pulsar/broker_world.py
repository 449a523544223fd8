"""A whole broker in this process, on one real bookie and metadata in memory, and clients that talk to it in frames.

async with broker_world() as world:
    talker = await world.talker()
    await talker.producer("t", producer_id=1)
    talker.publish(1, 0, b"hello")
    receipt = await talker.answer(BaseCommand.SEND_RECEIPT)
"""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
from collections.abc import AsyncIterator, Callable
from typing import Any

from magnetar.broker.broker import Broker
from magnetar.broker.front_end import FrontEnd
from magnetar.broker.ownership import Ownership, OwnershipContext, SoleOwnership
from magnetar.broker.pulsar.front_end import PulsarFrontEnd
from magnetar.broker.topics.persistent import PersistentTopic
from magnetar.config.broker import BrokerConfig
from magnetar.config.pulsar import PulsarConfig
from magnetar.config.root import Config
from magnetar.config.topic import TopicConfig
from magnetar.ledger.channels.local_transport import connect_local
from magnetar.ledger.client import LedgerClient
from magnetar.metadata.store import MetadataStore
from magnetar.names import TopicName
from magnetar.runtime.metrics import Metrics
from magnetar.testing.cluster import BookieCluster, small_config
from magnetar.wire.pulsar.encode import encode_command, encode_flow, encode_send_head
from magnetar.wire.pulsar.frames import FrameDecoder, with_checksum
from magnetar.wire.pulsar.proto.pulsar_api_pb2 import (
    BaseCommand,
    CommandAck,
    CommandSubscribe,
    MessageIdData,
    MessageMetadata,
    SingleMessageMetadata,
)
from tests.clusters import new_cluster

TIMEOUT_S = 10.0


def message(payload: bytes, sequence_id: int = 0, **fields: Any) -> bytes:
    """Returns what a producer sends after its command."""
    metadata = MessageMetadata(producer_name="p", sequence_id=sequence_id, publish_time=1, **fields)
    return with_checksum(metadata.SerializeToString(), payload)


def batch(payloads: list[bytes], sequence_id: int = 0) -> bytes:
    parts = []
    for payload in payloads:
        single = SingleMessageMetadata(payload_size=len(payload)).SerializeToString()
        parts.append(len(single).to_bytes(4, "big") + single + payload)
    return message(b"".join(parts), sequence_id, num_messages_in_batch=len(payloads))


class Talker(asyncio.BufferedProtocol):
    """A client that does what the test says and nothing else, but for answering pings."""

    def __init__(self) -> None:
        self.closed = asyncio.Event()
        self.received: list[tuple[BaseCommand, bytes]] = []
        self.reads = 0
        self.pings = 0
        self.answers_pings = True
        self._buffer = bytearray(2**20)
        self._rest = b""
        self._more = asyncio.Event()
        self._requests = 100

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.transport: Any = transport

    def connection_lost(self, exc: Exception | None) -> None:
        self.closed.set()
        self._more.set()

    def get_buffer(self, sizehint: int) -> memoryview:
        return memoryview(self._buffer)

    def buffer_updated(self, nbytes: int) -> None:
        self.reads += 1
        data = self._rest + bytes(self._buffer[:nbytes])
        decoder, end = FrameDecoder(2**26), 0
        for frame, following in decoder.frames(data, 0, len(data)):
            end = following
            self.pings += frame.command.type == BaseCommand.PING
            if frame.command.type == BaseCommand.PING and self.answers_pings:
                pong = BaseCommand(type=BaseCommand.PONG)
                pong.pong.SetInParent()
                self.send(pong)
            else:
                self.received.append((frame.command, bytes(frame.headers_and_payload or b"")))
        self._rest = data[end:]
        self._more.set()

    # --- saying -------------------------------------------------------------------------------------------------------

    def write(self, data: bytes) -> None:
        self.transport.write(data)

    def send(self, command: BaseCommand) -> None:
        self.write(encode_command(command))

    def next_request(self) -> int:
        self._requests += 1
        return self._requests

    async def connect(self, version: int = 21, client: str = "test", **features: bool) -> BaseCommand:
        command = BaseCommand(type=BaseCommand.CONNECT)
        command.connect.client_version = client
        command.connect.protocol_version = version
        for name, value in features.items():
            setattr(command.connect.feature_flags, name, value)
        self.send(command)
        return await self.answer(BaseCommand.CONNECTED)

    async def producer(self, topic: str, producer_id: int = 1, **fields: Any) -> BaseCommand:
        """PRODUCER_SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.PRODUCER)
        request = command.producer
        request.topic, request.producer_id, request.request_id = topic, producer_id, self.next_request()
        for name, value in fields.items():
            setattr(request, name, value)
        self.send(command)
        return await self.answer(BaseCommand.PRODUCER_SUCCESS, BaseCommand.ERROR)

    def publish(
        self,
        producer_id: int,
        sequence_id: int,
        payload: bytes,
        *,
        highest: int = 0,
        messages: int = 1,
        raw: bytes = b"",
    ) -> None:
        body = raw or message(payload, sequence_id)
        self.write(encode_send_head(producer_id, sequence_id, highest, messages, len(body)) + body)

    async def published(self, producer_id: int, sequence_id: int, payload: bytes, **fields: Any) -> MessageIdData:
        self.publish(producer_id, sequence_id, payload, **fields)
        return (await self.answer(BaseCommand.SEND_RECEIPT)).send_receipt.message_id

    async def subscribe(
        self,
        topic: str,
        subscription: str = "s",
        consumer_id: int = 1,
        kind: int = CommandSubscribe.Exclusive,
        **fields: Any,
    ) -> BaseCommand:
        """SUCCESS or ERROR."""
        command = BaseCommand(type=BaseCommand.SUBSCRIBE)
        request = command.subscribe
        request.topic, request.subscription, request.subType = topic, subscription, kind
        request.consumer_id, request.request_id = consumer_id, self.next_request()
        for name, value in fields.items():
            if name == "start_message_id":
                request.start_message_id.CopyFrom(value)
            else:
                setattr(request, name, value)
        self.send(command)
        return await self.answer(BaseCommand.SUCCESS, BaseCommand.ERROR)

    def flow(self, permits: int, consumer_id: int = 1) -> None:
        self.write(encode_flow(consumer_id, permits))

    def ack(
        self, *ids: MessageIdData, consumer_id: int = 1, cumulative: bool = False, request_id: int | None = None
    ) -> None:
        command = BaseCommand(type=BaseCommand.ACK)
        command.ack.consumer_id = consumer_id
        command.ack.ack_type = CommandAck.Cumulative if cumulative else CommandAck.Individual
        command.ack.message_id.extend(ids)
        if request_id is not None:
            command.ack.request_id = request_id
        self.send(command)

    # --- hearing ------------------------------------------------------------------------------------------------------

    async def answer(self, *kinds: int) -> BaseCommand:
        """Returns the first command of one of these kinds that was not taken yet. Commands of other kinds wait."""
        return (await self.answer_with_body(*kinds))[0]

    async def answer_with_body(self, *kinds: int) -> tuple[BaseCommand, bytes]:
        async with asyncio.timeout(TIMEOUT_S):
            while True:
                for heard in self.received:
                    if heard[0].type in kinds:
                        self.received.remove(heard)
                        return heard
                if self.closed.is_set():
                    raise ConnectionResetError("the broker has closed the connection")
                self._more.clear()
                await self._more.wait()

    async def message(self) -> tuple[MessageIdData, bytes]:
        """The next delivery: its id, and the end of its payload."""
        command, body = await self.answer_with_body(BaseCommand.MESSAGE)
        return command.message.message_id, body

    async def wait_closed(self) -> None:
        async with asyncio.timeout(TIMEOUT_S):
            await self.closed.wait()


class BrokerWorld:
    def __init__(
        self,
        cluster: BookieCluster,
        config: Config,
        *,
        store: MetadataStore | None = None,
        http_address: str = "127.0.0.1:8080",
        ownership: Callable[[OwnershipContext], Ownership] = SoleOwnership,
        configuration: MetadataStore | None = None,
    ) -> None:
        """Without a store, its session is the clients'. `configuration` is the store that clusters share, if any."""
        self.cluster = cluster
        self.config = config
        self.broker: Broker
        self._store = store or cluster.store
        self._http_address = http_address
        self._ownership = ownership
        self._configuration = configuration

    async def start(self) -> None:
        self._client = LedgerClient(self._store, self.config, self.cluster.runtime, local=self.cluster.local)
        await self._client.start()
        self.front_end = PulsarFrontEnd(self.config.pulsar)
        self.broker = await Broker.open(
            self.config,
            self.cluster.runtime,
            self._store,
            self._client,
            Metrics(),
            front_ends=[self.front_end, *self.more_front_ends()],
            http_address=self._http_address,
            ownership=self._ownership,
            configuration=self._configuration,
        )

    def more_front_ends(self) -> list[FrontEnd]:
        """Makes those of other protocols."""
        return []

    async def stop(self) -> None:
        await self.broker.aclose()
        await self._client.aclose()

    async def restart(self) -> None:
        await self.stop()
        await self.start()

    async def dial(self) -> Talker:
        """A connection on which nothing was said yet."""
        talker = Talker()
        connect_local(self.front_end.accept, lambda: talker)
        return talker

    async def talker(self, version: int = 21, **features: bool) -> Talker:
        talker = await self.dial()
        await talker.connect(version, **features)
        return talker

    async def topic(self, name: str) -> PersistentTopic:
        found = await self.broker.service.topic(TopicName.parse(name), create=False)
        assert isinstance(found, PersistentTopic)
        return found


@contextlib.asynccontextmanager
async def broker_world(*, configuration: MetadataStore | None = None, **sections: Any) -> AsyncIterator[BrokerWorld]:
    """A section that is given replaces the one here."""
    config = small_config(
        **{
            "pulsar": PulsarConfig(port=0),
            "topic": TopicConfig(ensemble_size=1, write_quorum=1, ack_quorum=1),
            "broker": BrokerConfig(),
            **sections,
        }
    )
    async with new_cluster(1, config=config) as cluster:
        world = BrokerWorld(cluster, dataclasses.replace(config), configuration=configuration)
        await world.start()
        try:
            yield world
        finally:
            await world.stop()
