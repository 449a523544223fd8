"""What a cluster holds: messages, gaps of subscriptions, schemas, deduplication state, policies, and how it is checked.

Each turn of a broker checks what all turns before it left, and then adds to it. Everything that a check may expect has
been acknowledged to a client: messages by receipts of the producer, acknowledgements by their own receipts.

Gaps:    Of a subscription with individual acknowledgements: a whole entry of ten messages, every third message of the
         others; so some gaps are entries and some are inside of a batch. Of one with cumulative acknowledgements: it
         ends inside of a batch.
Clients: the official Python client writes; Apache's Java client subscribes, because it asks for receipts.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Final

import pulsar

from interop.cluster.mixed import NAMESPACE, ask, get
from interop.java_program import JavaProgram
from interop.pulsar.servers import Broker
from magnetar.testing.processes.child import wait_for

BATCH: Final = 10
_BATCHES: Final = 3
_SINGLES: Final = 6
_CUMULATIVE: Final = 17
"""Messages that a turn acknowledges: the seventh of the second batch is the last one."""
_AGAIN: Final = 5
"""Messages of the turn before that a producer sends once more."""
_PARTITIONS: Final = 3
_QUIET_MS: Final = 500
_WAIT_S: Final = 30.0
_TOPICS: Final = f"/admin/v2/persistent/{NAMESPACE}"
_SCHEMAS: Final = f"/admin/v2/schemas/{NAMESPACE}"


def text_of(turn: int, number: int) -> str:
    return f"turn-{turn}-{number}"


@dataclass(slots=True)
class Content:
    """Of a cluster without these topics. `check` and `add` are called in turns, with the broker that runs."""

    program: JavaProgram
    turn: int = 0
    _texts: list[str] = field(default_factory=list)
    _owed: list[str] = field(default_factory=list)
    """Not acknowledged by the subscription with gaps, in order."""
    _cumulative: int = 0
    """Messages acknowledged by the other subscription."""
    _sent: int = 0
    """Messages of the producer that sends some of them twice."""
    _schemas: list[Any] = field(default_factory=list)
    _limit: int = 0
    """Consumers that the topic's own policy allows."""
    _clients: set[str] = field(default_factory=set)
    """The brokers to which the Java program has a client."""

    async def create(self, broker: Broker) -> None:
        ask(broker, "PUT", f"{_TOPICS}/parts/partitions", _PARTITIONS)
        await self._subscribe(broker)
        await self._leave()

    async def check(self, broker: Broker, client: pulsar.Client) -> None:
        self._check_messages(client)
        await self._subscribe(broker)
        await self._check_subscriptions()
        await self._leave()
        await self._check_schemas(broker)
        assert get(broker, f"{_TOPICS}/parts/partitions")["partitions"] == _PARTITIONS
        wait_for(
            lambda: get(broker, f"{_TOPICS}/told/maxConsumers") == (self._limit or None),
            what=f"the topic's policy of {self._limit} consumers is known",
            timeout=_WAIT_S,
        )

    async def add(self, broker: Broker, client: pulsar.Client) -> None:
        added = self._publish(client)
        self._publish_again(client)
        self._publish_to_partitions(client)
        await self._subscribe(broker)
        await self._acknowledge(added)
        await self._leave()
        await self._evolve(broker)
        self._limit = 10 + self.turn
        ask(broker, "POST", f"{_TOPICS}/told/maxConsumers", self._limit)
        self.turn += 1

    # --- messages -----------------------------------------------------------------------------------------------------

    def _publish(self, client: pulsar.Client) -> list[str]:
        added = [text_of(self.turn, number) for number in range(BATCH * _BATCHES + _SINGLES)]
        in_batches, singles = added[: BATCH * _BATCHES], added[BATCH * _BATCHES :]
        producer = client.create_producer(
            "told", batching_enabled=True, batching_max_messages=BATCH, batching_max_publish_delay_ms=10_000
        )
        for text in in_batches:
            producer.send_async(text.encode(), None, properties={"text": text}, partition_key=text[-1])
        producer.flush()
        assert producer.last_sequence_id() == len(in_batches) - 1
        producer.close()
        producer = client.create_producer("told")
        for text in singles:
            producer.send(text.encode(), properties={"text": text}, partition_key=text[-1])
        producer.close()
        self._texts += added
        self._owed += added
        return added

    def _publish_again(self, client: pulsar.Client) -> None:
        """The broker must know the last message of this producer's name; what comes again is written once."""
        producer = client.create_producer("once", producer_name="sends-twice")
        assert producer.last_sequence_id() == self._sent - 1
        for number in range(max(0, self._sent - _AGAIN), self._sent + BATCH):
            producer.send(b"%d" % number, sequence_id=number)
        self._sent += BATCH
        assert producer.last_sequence_id() == self._sent - 1
        producer.close()

    def _publish_to_partitions(self, client: pulsar.Client) -> None:
        producer = client.create_producer(
            "parts", message_routing_mode=pulsar.PartitionsRoutingMode.RoundRobinDistribution
        )
        for number in range(_PARTITIONS):
            producer.send(text_of(self.turn, number).encode())
        producer.close()

    def _check_messages(self, client: pulsar.Client) -> None:
        found = _read(client, "told")
        assert [each.data().decode() for each in found] == self._texts
        assert [each.properties()["text"] for each in found] == self._texts
        assert [each.partition_key() for each in found] == [text[-1] for text in self._texts]
        assert [int(each.data()) for each in _read(client, "once")] == list(range(self._sent))
        parts = [_read(client, f"parts-partition-{number}") for number in range(_PARTITIONS)]
        texts = {text_of(turn, number) for turn in range(self.turn) for number in range(_PARTITIONS)}
        assert sorted(each.data().decode() for part in parts for each in part) == sorted(texts)
        assert {len(part) for part in parts} == {self.turn}

    # --- subscriptions ------------------------------------------------------------------------------------------------

    async def _subscribe(self, broker: Broker) -> None:
        await self.program.ask("connect", url=broker.url)
        for name, kind in (("gaps", "Shared"), ("cumulative", "Exclusive")):
            await self.program.ask(
                "subscribe",
                consumer=name,
                subscription=name,
                topic="told",
                type=kind,
                receipts=True,
                initial="Earliest",
            )

    async def _leave(self) -> None:
        for name in ("gaps", "cumulative"):
            await self.program.ask("closeConsumer", consumer=name)

    async def _java_client(self, broker: Broker) -> str:
        """One for each broker: to close one takes it two seconds."""
        if broker.broker_id not in self._clients:
            await self.program.ask("connect", client=broker.broker_id, url=broker.url)
            self._clients.add(broker.broker_id)
        return broker.broker_id

    async def _receive(self, consumer: str, count: int, acknowledge: str = "none") -> list[str]:
        received = await self.program.ask("receive", consumer=consumer, count=count, acknowledge=acknowledge)
        return [message["text"] for message in received]

    async def _check_subscriptions(self) -> None:
        """Exactly what is owed comes, and nothing else."""
        for name, owed in (("gaps", self._owed), ("cumulative", self._texts[self._cumulative :])):
            found = await self._receive(name, len(owed))
            assert found == owed, f"{name}: {sorted(set(found) ^ set(owed))}"
            more = await self.program.ask("receive", consumer=name, count=1, quietMs=_QUIET_MS, acknowledge="none")
            assert not more, more

    async def _acknowledge(self, added: list[str]) -> None:
        whole = added[BATCH : 2 * BATCH]
        texts = [text for number, text in enumerate(added) if text in whole or number % 3 == 0]
        assert await self._receive("gaps", len(self._owed)) == self._owed
        assert await self.program.ask("acknowledge", consumer="gaps", texts=texts) == len(texts)
        self._owed = [text for text in self._owed if text not in texts]
        count = len(self._texts) - len(added) + _CUMULATIVE - self._cumulative
        await self._receive("cumulative", count, acknowledge="cumulative")
        self._cumulative += count

    # --- schemas ------------------------------------------------------------------------------------------------------

    async def _check_schemas(self, broker: Broker) -> None:
        """Messages of earlier turns are decoded by the schema that the topic has, and all versions are as they were."""
        if self._schemas:
            assert await self._round_trip(broker, "AUTO_CONSUME") == "Ada"
            assert _schemas_of(broker) == self._schemas

    async def _round_trip(self, broker: Broker, kind: str) -> Any:
        client = await self._java_client(broker)
        return await self.program.ask("schemaRoundTrip", client=client, topic="people", kind=kind)

    async def _evolve(self, broker: Broker) -> None:
        """The client's schema is version 0; each turn adds a version with one more field."""
        assert await self._round_trip(broker, "AVRO") == "Ada"
        before = _schemas_of(broker)
        assert before == (self._schemas or before[:1])
        latest = json.loads(before[-1]["data"])
        latest["fields"].append({"name": f"turn{self.turn}", "type": ["null", "int"], "default": None})
        schema = {"type": "AVRO", "schema": json.dumps(latest), "properties": {"turn": str(self.turn)}}
        ask(broker, "POST", f"{_SCHEMAS}/people/schema", schema)
        self._schemas = _schemas_of(broker)
        assert len(self._schemas) == self.turn + 2


def _read(client: pulsar.Client, topic: str) -> list[pulsar.Message]:
    """All messages, from the beginning."""
    reader = client.create_reader(topic, pulsar.MessageId.earliest)
    found = []
    while reader.has_message_available():
        found.append(reader.read_next(int(_WAIT_S * 1000)))
    reader.close()
    return found


def _schemas_of(broker: Broker) -> list[Any]:
    found: list[Any] = get(broker, f"{_SCHEMAS}/people/schemas")["getSchemaResponses"]
    return found
