"""Writes pulsar-frames.json: frames as the official Pulsar client sends them, caught by a server that plays along.

    python -m tests.golden.capture_pulsar_frames

The server answers as a broker would, as far as the calls below need it, with frames of our own encoders: that the
client continues shows that it reads them. Run it again for a new release of the client; names, times and ids change.
"""

from __future__ import annotations

import json
import re
import socket
import threading
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

import pulsar
from pulsar.schema import AvroSchema, Record, String

from magnetar.wire.pulsar import encode
from magnetar.wire.pulsar.frames import Frame, FrameDecoder
from magnetar.wire.pulsar.proto import pulsar_api_pb2 as api

TARGET = Path(__file__).with_name("pulsar-frames.json")
LEDGER = 7
MESSAGE_BYTES_MAX = 1_500  # Small, so that chunks of a message are, too.


class Broker:
    """One connection after the other, each on a thread; topics are lists of what was sent to them."""

    def __init__(self) -> None:
        self.listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"pulsar://127.0.0.1:{self.listener.getsockname()[1]}"
        self.frames: dict[str, list[bytes]] = defaultdict(list)
        self.topics: dict[str, list[bytes]] = defaultdict(list)
        self.topic_of: dict[int, str] = {}
        self.next_entry: dict[int, int] = {}
        self.partitions: dict[str, int] = {}
        self.scenario = "connect"
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            connection, _ = self.listener.accept()
            threading.Thread(target=self._serve, args=(connection,), daemon=True).start()

    def _serve(self, connection: socket.socket) -> None:
        decoder, received = FrameDecoder(), b""
        while data := connection.recv(1 << 20):
            received += data
            start = 0
            for frame, following in decoder.frames(received, 0, len(received)):
                self._keep(api.BaseCommand.Type.Name(frame.command.type), received[start:following])
                self._on_frame(connection, frame)
                start = following
            received = received[start:]

    def _keep(self, kind: str, frame: bytes) -> None:
        self.frames[f"{kind.lower()} {self.scenario}"].append(frame)

    def _on_frame(self, connection: socket.socket, frame: Frame) -> None:
        name = api.BaseCommand.Type.Name(frame.command.type).lower()
        answer: Callable[[Frame], bytes] | None = getattr(self, f"_on_{name}", None)
        if answer is not None:
            connection.sendall(answer(frame))

    def _on_connect(self, frame: Frame) -> bytes:
        command = api.BaseCommand(type=api.BaseCommand.CONNECTED)
        command.connected.server_version = "capture"
        command.connected.protocol_version = frame.command.connect.protocol_version
        command.connected.max_message_size = MESSAGE_BYTES_MAX
        command.connected.feature_flags.supports_topic_watchers = False
        return encode.encode_command(command) + encode.PING

    def _on_ping(self, _frame: Frame) -> bytes:
        return encode.PONG

    def _on_partitioned_metadata(self, frame: Frame) -> bytes:
        request = frame.command.partitionMetadata
        command = api.BaseCommand(type=api.BaseCommand.PARTITIONED_METADATA_RESPONSE)
        command.partitionMetadataResponse.request_id = request.request_id
        command.partitionMetadataResponse.partitions = self.partitions.get(request.topic, 0)
        command.partitionMetadataResponse.response = api.CommandPartitionedTopicMetadataResponse.Success
        return encode.encode_command(command)

    def _on_lookup(self, frame: Frame) -> bytes:
        command = api.BaseCommand(type=api.BaseCommand.LOOKUP_RESPONSE)
        answer = command.lookupTopicResponse
        answer.request_id = frame.command.lookupTopic.request_id
        answer.brokerServiceUrl = self.url
        answer.response = api.CommandLookupTopicResponse.Connect
        answer.authoritative = True
        return encode.encode_command(command)

    def _on_producer(self, frame: Frame) -> bytes:
        request = frame.command.producer
        self.topic_of[request.producer_id] = request.topic
        command = api.BaseCommand(type=api.BaseCommand.PRODUCER_SUCCESS)
        command.producer_success.request_id = request.request_id
        command.producer_success.producer_name = request.producer_name or "captured-0-1"
        command.producer_success.last_sequence_id = -1
        command.producer_success.schema_version = b""
        return encode.encode_command(command)

    def _on_send(self, frame: Frame) -> bytes:
        send = frame.command.send
        stored = self.topics[self.topic_of[send.producer_id]]
        assert frame.headers_and_payload is not None
        stored.append(bytes(frame.headers_and_payload))
        return encode.encode_send_receipt(
            send.producer_id, send.sequence_id, send.highest_sequence_id, LEDGER, len(stored) - 1
        )

    def _on_subscribe(self, frame: Frame) -> bytes:
        request = frame.command.subscribe
        self.topic_of[request.consumer_id] = request.topic
        self.next_entry[request.consumer_id] = 0
        return encode.encode_success(request.request_id)

    def _on_flow(self, frame: Frame) -> bytes:
        consumer = frame.command.flow.consumer_id
        out = b""
        stored = self.topics[self.topic_of[consumer]]
        for entry_id in range(self.next_entry[consumer], len(stored)):
            body = stored[entry_id]
            out += encode.encode_message_head(consumer, LEDGER, entry_id, -1, 0, None, None, len(body)) + body
        self.next_entry[consumer] = len(stored)
        return out

    def _on_redeliver_unacknowledged_messages(self, frame: Frame) -> bytes:
        request = frame.command.redeliverUnacknowledgedMessages
        out = b""
        for message_id in request.message_ids:
            body = self.topics[self.topic_of[request.consumer_id]][message_id.entryId]
            out += encode.encode_message_head(
                request.consumer_id, LEDGER, message_id.entryId, -1, 1, None, None, len(body)
            )
            out += body
        return out

    def _on_ack(self, frame: Frame) -> bytes:
        ack = frame.command.ack
        return encode.encode_ack_response(ack.consumer_id, ack.request_id) if ack.HasField("request_id") else b""

    def _on_seek(self, frame: Frame) -> bytes:
        return encode.encode_success(frame.command.seek.request_id)

    def _on_get_last_message_id(self, frame: Frame) -> bytes:
        request = frame.command.getLastMessageId
        command = api.BaseCommand(type=api.BaseCommand.GET_LAST_MESSAGE_ID_RESPONSE)
        answer = command.getLastMessageIdResponse
        answer.request_id = request.request_id
        answer.last_message_id.ledgerId = LEDGER
        answer.last_message_id.entryId = len(self.topics[self.topic_of[request.consumer_id]]) - 1
        return encode.encode_command(command)

    def _on_get_topics_of_namespace(self, frame: Frame) -> bytes:
        command = api.BaseCommand(type=api.BaseCommand.GET_TOPICS_OF_NAMESPACE_RESPONSE)
        command.getTopicsOfNamespaceResponse.request_id = frame.command.getTopicsOfNamespace.request_id
        command.getTopicsOfNamespaceResponse.topics.append("persistent://public/default/plain")
        return encode.encode_command(command)

    def _on_unsubscribe(self, frame: Frame) -> bytes:
        return encode.encode_success(frame.command.unsubscribe.request_id)

    def _on_close_producer(self, frame: Frame) -> bytes:
        return encode.encode_success(frame.command.close_producer.request_id)

    def _on_close_consumer(self, frame: Frame) -> bytes:
        return encode.encode_success(frame.command.close_consumer.request_id)

    def _on_get_schema(self, frame: Frame) -> bytes:
        command = api.BaseCommand(type=api.BaseCommand.GET_SCHEMA_RESPONSE)
        command.getSchemaResponse.request_id = frame.command.getSchema.request_id
        command.getSchemaResponse.error_code = api.TopicNotFound
        return encode.encode_command(command)


class _Greeting(Record):  # type: ignore[misc]
    text = String()


def _produce(client: pulsar.Client, broker: Broker) -> None:
    broker.scenario = "plain"
    producer = client.create_producer("plain", batching_enabled=False)
    producer.send(
        b"hello",
        properties={"a": "1", "b": ""},
        partition_key="key",
        ordering_key="order",
        event_timestamp=1_700_000_000_000,
    )
    producer.send(b"", deliver_at=1_900_000_000_000)
    producer.close()
    broker.scenario = "chunked"
    producer = client.create_producer("chunked", batching_enabled=False, chunking_enabled=True, producer_name="chunker")
    producer.send(bytes(3_000), properties={"large": "yes"})
    producer.close()
    broker.scenario = "with schema"
    client.create_producer("with-schema", schema=AvroSchema(_Greeting)).close()
    for kind in ("NONE", "LZ4", "ZLib", "ZSTD", "SNAPPY"):
        broker.scenario = f"batch {kind.lower()}"
        producer = client.create_producer(
            f"batch-{kind.lower()}",
            producer_name=f"batcher-{kind.lower()}",
            compression_type=getattr(pulsar.CompressionType, kind),
            batching_enabled=True,
            batching_max_publish_delay_ms=60_000,
        )
        for number in range(3):
            producer.send_async(
                b"message %d " % number * 20, None, properties={"n": str(number)}, partition_key=f"k{number}"
            )
        producer.flush()
        producer.close()


def _consume(client: pulsar.Client, broker: Broker) -> None:
    for kind in ("Exclusive", "Shared", "Failover", "KeyShared"):
        broker.scenario = kind.lower()
        consumer = client.subscribe(
            "plain",
            "sub",
            consumer_type=getattr(pulsar.ConsumerType, kind),
            initial_position=pulsar.InitialPosition.Earliest,
            negative_ack_redelivery_delay_ms=100,
            properties={"who": "capture"},
        )
        first = consumer.receive(5_000)
        assert first.data() == b"hello"
        assert first.properties() == {"a": "1", "b": ""}
        consumer.acknowledge(first)
        if kind == "Exclusive":
            consumer.acknowledge_cumulative(first)
            consumer.seek(pulsar.MessageId.earliest)
            consumer.seek(1_700_000_000_000)
            assert consumer.get_last_message_id().entry_id() == 1
        if kind == "Shared":
            second = consumer.receive(5_000)
            consumer.negative_acknowledge(second)
            assert consumer.receive(5_000).redelivery_count() == 1
        consumer.unsubscribe()
    broker.scenario = "batch index"
    consumer = client.subscribe(
        "batch-lz4",
        "sub",
        batch_index_ack_enabled=True,
        consumer_type=pulsar.ConsumerType.Shared,
        initial_position=pulsar.InitialPosition.Earliest,
    )
    for number in range(3):
        message = consumer.receive(5_000)
        assert message.data() == b"message %d " % number * 20
        if number == 1:
            consumer.acknowledge(message)
    consumer.close()
    broker.scenario = "reader"
    reader = client.create_reader("plain", pulsar.MessageId.earliest)
    assert reader.has_message_available()
    assert reader.read_next(5_000).data() == b"hello"
    reader.close()
    broker.scenario = "pattern"
    client.subscribe(re.compile("persistent://public/default/pl.*"), "sub").close()


def main() -> None:
    broker = Broker()
    broker.partitions["persistent://public/default/parts"] = 2
    client = pulsar.Client(broker.url, logger=pulsar.ConsoleLogger(pulsar.LoggerLevel.Error))
    _produce(client, broker)
    _consume(client, broker)
    broker.scenario = "partitioned"
    client.create_producer("parts").close()
    client.close()
    kept = {name: [frame.hex() for frame in frames] for name, frames in broker.frames.items()}
    TARGET.write_text(json.dumps({name: frames for name, frames in sorted(kept.items()) if frames}, indent=1) + "\n")


if __name__ == "__main__":
    main()
